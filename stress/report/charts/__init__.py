"""Draws the pictures of a report.

`gallery` chooses them, `scenario` and `latency` and `fault` draw them; `style` defines their look, `timeline`
the common time axis, `levels` counts how many there were at each moment. Rows are binned first, so that a
million of them cost as much as a thousand.
"""
