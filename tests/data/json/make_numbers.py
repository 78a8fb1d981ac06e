#!/usr/bin/env python3
"""Writes numbers.txt: JSON numbers and what Python makes of them, `input<TAB>json.dumps(json.loads(input))`.

    tests/data/json/make_numbers.py > tests/data/json/numbers.txt
"""

import json
import random
import struct
import sys

random.seed(20261129)
values = """0 -0 0.0 -0.0 0e0 -0e10 1 -1 10 1.0 1.5 -1.5 0.1 0.2 0.3 1e0 1E0 1e5 1E5 1e+5 1e-5 1e15 1e16 1e17 1e21 1e22 1e23 1e-4
1e-5 0.0001 0.00001 0.00012345 123456789012345.0 1234567890123456.0 12345678901234567.0 1e308 1.7976931348623157e308
1.7976931348623159e308 1e309 -1e309 1e400 2.2250738585072014e-308 2.225073858507201e-308 4.9e-324 5e-324 2.4e-324 1e-324 1e-400 -1e-400
9007199254740991 9007199254740992 9007199254740993 9007199254740993.0 9223372036854775807 9223372036854775808
-9223372036854775808 -9223372036854775809 18446744073709551616 123456789012345678901234567890 3.141592653589793238462643383279
0.1000000000000000055511151231257827 100000000000000000000.0 100.0 1000000.0 1.10 1.100 2.50e2 25e-1 0.30000000000000004
1e00 1e05 1e-05 0.000000e5 5.684341886080802e-14 9.5367431640625e-07""".split()
values.append("9" * 400)
values.append("-1" + "0" * 300)
values.append("1." + "0" * 200 + "1")
for exponent in range(-1074, 1024, 3):
    values.append(repr(2.0**exponent))
    # Both neighbours of a power of two, where the distance to the next double changes.
    bits = struct.unpack("<Q", struct.pack("<d", 2.0**exponent))[0]
    for near in (bits - 1, bits + 1):
        values.append("%.25e" % struct.unpack("<d", struct.pack("<Q", near))[0])
for _ in range(1500):
    bits = random.getrandbits(64)
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    if value == value and abs(value) != float("inf"):
        values.append("%.20e" % value)
for _ in range(1000):
    values.append("%.*f" % (random.randrange(1, 12), random.uniform(-1, 1) * 10 ** random.randrange(-6, 18)))
for value in values:
    sys.stdout.write(value + "\t" + json.dumps(json.loads(value)) + "\n")
