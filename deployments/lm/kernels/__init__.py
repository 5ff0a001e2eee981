"""Operations written for one kind of chip, one folder each, and what it takes to run them."""
