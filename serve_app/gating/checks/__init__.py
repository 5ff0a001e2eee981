"""`outrider gate run`: is speculation exact on this chip, and is it faster? Measures, and makes records of it."""
