"""`outrider bench`: small measurements, each a function that returns a frozen record, and one page that shows them.

What is compared is measured in alternation, so that a ratio holds on a machine that also does other things.
"""
