"""Tells from its first bytes what a file is that is not what it should be. Knows names and beginnings only."""

_KINDS = (
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a Git LFS pointer that stands for the real file; fetch that with `git lfs pull`"),
    (b"PK\x03\x04", "a PyTorch or zip archive; convert it to safetensors"),
    (b"\x80\x02", "a Python pickle; convert it to safetensors"),
    (b"\x89HDF", "an HDF5 file; convert it to safetensors"),
    (b"ggml", "a GGML file, from before GGUF; use a GGUF file"),
    (b"tjgg", "a GGML file, from before GGUF; use a GGUF file"),
    (b"fmgg", "a GGML file, from before GGUF; use a GGUF file"),
    (b"<!DOCTYPE", "a web page; the download failed"),
    (b"<!doctype", "a web page; the download failed"),
    (b"<html", "a web page; the download failed"),
)
HEAD_BYTES = 32


def described(head: bytes | bytearray, /) -> str | None:
    """What a file that begins like this is, and what to do about it; `None` when it is not known."""
    return next((kind for beginning, kind in _KINDS if head.startswith(beginning)), None)
