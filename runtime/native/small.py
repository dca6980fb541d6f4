"""The steps between products, for few tokens: each is one call where PyTorch takes several, which cost more than the
work."""

from math import e, log2

from llvmlite import ir

from runtime.native.code import FLOAT, I16, I32, I64, VOID, Code, vector

LANES = 16


def write_small() -> str:
    """A module with `norm`, `gate` and `rotate`; all take i64, addresses among them, and count in numbers."""
    module = ir.Module("small")
    for name, write, n_arguments in (("norm", _norm, 6), ("gate", _gate, 4), ("rotate", _rotate, 8)):
        write(Code(ir.Function(module, ir.FunctionType(VOID, [I64] * n_arguments), name)))
    return str(module)


def _read(code: Code, base: ir.Value, index: ir.Value) -> ir.Value:
    """LANES bfloat16 from the number `index` on."""
    return code.widened(code.load(vector(I16, LANES), base, code.b.mul(index, code.number(2))))


def _write(code: Code, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
    code.store(code.halves(value), base, code.b.mul(index, code.number(2)))


def _norm(code: Code) -> None:
    """norm(hidden, weight, output, rows, columns, epsilon's bits): the root-mean-square norm of each row."""
    b, n = code.b, code.number
    hidden, weight, output = (code.pointer(value) for value in code.function.args[:3])
    n_rows, n_columns, bits = code.function.args[3:]
    epsilon = b.bitcast(b.trunc(bits, I32), FLOAT)
    with code.loop(n(0), n_rows) as row:
        start = b.mul(row, n_columns)
        squares = code.variable(code.floats(0, LANES))
        with code.loop(n(0), n_columns, LANES) as column:
            value = _read(code, hidden, b.add(start, column))
            squares.value = code.fma(value, value, squares.value)
        mean = b.fdiv(code.sum(squares.value), b.sitofp(n_columns, FLOAT))
        root = code.call("llvm.sqrt.f32", FLOAT, (b.fadd(mean, epsilon),))
        scale = code.spread(b.fdiv(ir.Constant(FLOAT, 1.0), root), LANES)
        with code.loop(n(0), n_columns, LANES) as column:
            value = b.fmul(_read(code, hidden, b.add(start, column)), scale)
            _write(code, b.fmul(value, _read(code, weight, column)), output, b.add(start, column))
    code.end()


def _gate(code: Code) -> None:
    """gate(gate and up, output, rows, columns): silu(gate) * up of each row."""
    b, n = code.b, code.number
    source, output = (code.pointer(value) for value in code.function.args[:2])
    n_rows, n_columns = code.function.args[2:]
    with code.loop(n(0), n_rows) as row:
        start = b.mul(row, n_columns)
        with code.loop(n(0), n_columns, LANES) as column:
            gate = _read(code, source, b.add(b.mul(start, n(2)), column))
            up = _read(code, source, b.add(b.add(b.mul(start, n(2)), n_columns), column))
            power = code.exp2(code.least(b.fmul(gate, code.floats(-log2(e), LANES)), 126))
            value = b.fmul(b.fdiv(gate, b.fadd(power, code.floats(1, LANES))), up)
            _write(code, value, output, b.add(start, column))
    code.end()


def _rotate(code: Code) -> None:
    """rotate(heads, cosines, sines, tokens, token's stride, heads, head's stride, rotary numbers), in place.

    Cosines and sines are as `Rope.at` gives them.
    """
    b, n = code.b, code.number
    heads, cosines, sines = (code.pointer(value) for value in code.function.args[:3])
    n_tokens, token_stride, n_heads, head_stride, n_rotary = code.function.args[3:]
    half = b.sdiv(n_rotary, n(2))
    with code.loop(n(0), n_tokens) as token, code.loop(n(0), half, LANES) as column:
        low = b.add(b.mul(token, n_rotary), column)
        high = b.add(low, half)
        turns = [_read(code, table, place) for place in (low, high) for table in (cosines, sines)]
        cos_low, sin_low, cos_high, sin_high = turns
        with code.loop(n(0), n_heads) as head:
            first = b.add(b.add(b.mul(token, token_stride), b.mul(head, head_stride)), column)
            second = b.add(first, half)
            left, right = _read(code, heads, first), _read(code, heads, second)
            _write(code, code.fma(left, cos_low, b.fmul(right, sin_low)), heads, first)
            _write(code, code.fma(right, cos_high, b.fmul(left, sin_high)), heads, second)
    code.end()
