"""Functions of float32 vectors that processors don't have."""

from __future__ import annotations

from engine.kernels.compiled.ir import Function, Value, i32, vec

# exp(r) on |r| <= ln(2) / 2, minimax after Cephes' expf; highest power first
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln(2); products with the first are exact


def exp(f: Function, x: Value) -> Value:
    """Return e**x, to about one unit in the last place; 0 below -87, infinity above 88.4."""
    type_ = x.type
    # selected, not LLVM's `maxnum`, which takes the bound where x is not a number
    bounded = f.select(x < -87.0, f.constant(type_, -87.0), x)
    bounded = f.select(bounded > 88.5, f.constant(type_, 88.5), bounded)  # where the power of two is infinite already
    n = f.elementwise("rint", bounded * 1.44269504088896341)
    r = f.fma(n, f.constant(type_, -_LN2_HIGH), bounded)
    r = f.fma(n, f.constant(type_, -_LN2_LOW), r)
    total = f.constant(type_, _EXP[0])
    for coefficient in _EXP[1:]:
        total = f.fma(total, r, f.constant(type_, coefficient))
    value = f.fma(total, r * r, r + 1.0)
    power = ((n.to(vec(i32, type_.count)) + 127) << 23).bits(type_)
    return f.select(x < -87.0, f.constant(type_, 0.0), value * power)


def sigmoid(f: Function, x: Value) -> Value:
    """Return 1 / (1 + e**-x)."""
    return 1.0 / (exp(f, 0.0 - x) + 1.0)


def tanh(f: Function, x: Value) -> Value:
    """Return the hyperbolic tangent, to about 1e-7 absolutely."""
    return 2.0 * sigmoid(f, x * 2.0) - 1.0


def softplus(f: Function, x: Value) -> Value:
    """Return log(1 + e**x), to a few units in the last place."""
    type_ = x.type
    negative = x < 0.0
    u = exp(f, f.select(negative, x, 0.0 - x))
    z = u / (u + 2.0)  # log(1 + u) = 2 artanh(z), and z is at most 1/3
    square = z * z
    total = f.constant(type_, 1 / 15)
    for power in range(13, 0, -2):
        total = f.fma(total, square, f.constant(type_, 1 / power))
    return f.fma(z * 2.0, total, f.select(negative, f.constant(type_, 0.0), x))


def sum_of_lanes(f: Function, x: Value) -> Value:
    """Return the sum of a vector's lanes, in a fixed order: halves onto halves."""
    lanes = x.type.count
    while lanes > 1:
        lanes //= 2
        x = x.shuffle(range(lanes)) + x.shuffle(range(lanes, 2 * lanes))
    return x.lane(0)


def sums_of_lanes(vectors: list[Value]) -> Value:
    """Return a vector of the sums of as many vectors as each has lanes."""
    n = group = len(vectors)
    while group > 1:
        # each vector holds groups of partial sums: add the first halves of the groups to the second halves
        first = [i for i in range(2 * n) if i % group < group // 2]
        second = [i + group // 2 for i in first]
        vectors = [a.shuffle(first, b) + a.shuffle(second, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        group //= 2
    return vectors[0]
