"""What compiled windows do not do: copy the cache, or come back before they are asked."""

from deployments.lm.quant.linear import Precision
from tests.verifier.conftest import LoadGolden


def test_no_program_copies_a_layer_of_the_cache(load_golden: LoadGolden) -> None:
    """A copy would be a temporary as large as a layer's pages; what a window needs is far smaller."""
    programs = load_golden(Precision.INT8).programs
    layer = programs.shape.nbytes(Precision.INT8.cache_dtype) // len(programs.shape.layout)
    assert 0 < programs.temporaries < layer
