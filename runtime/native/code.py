"""Writing loops over vectors in LLVM's language: a thin layer over llvmlite's builder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import factorial, log

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, POINTER, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()


class BFloat(ir.types.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def vector(kind: ir.Type, width: int) -> ir.VectorType:
    return ir.VectorType(kind, width)


class Code:
    """A function's body. Integers are i64; addresses are counted in bytes."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.top = ir.IRBuilder(function.append_basic_block("top"))  # where room is made, once
        self.b = ir.IRBuilder(function.append_basic_block("body"))
        self._body = self.b.block

    def end(self) -> None:
        self.b.ret_void()
        self.top.branch(self._body)

    def number(self, value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    def room(self, n_bytes: int) -> ir.Value:
        """Memory of the function's own, for vectors of any width."""
        place = self.top.alloca(ir.ArrayType(I8, n_bytes))
        place.align = 64
        place.type = POINTER  # llvmlite would give it one of an array
        return place

    def variable(self, value: ir.Value) -> "Variable":
        return Variable(self, value)

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int = 1) -> Iterator[ir.Value]:
        """For each number from `start` on that is below `stop`."""
        index = self.variable(start)
        head, body, done = (self.b.append_basic_block(name) for name in ("head", "loop", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.b.icmp_signed("<", index.value, stop), body, done)
        self.b.position_at_end(body)
        yield index.value
        index.value = self.b.add(index.value, self.number(step))
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def jobs(self, next_job: ir.Value, n_jobs: ir.Value) -> Iterator[ir.Value]:
        """Each job of which no other thread has taken the number, counted at the address `next_job`."""
        b = self.b
        job = self.variable(b.atomic_rmw("add", next_job, self.number(1), "monotonic"))
        head, body, done = (b.append_basic_block(name) for name in ("take", "job", "none"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(b.icmp_signed("<", job.value, n_jobs), body, done)
        b.position_at_end(body)
        yield job.value
        job.value = b.atomic_rmw("add", next_job, self.number(1), "monotonic")
        b.branch(head)
        b.position_at_end(done)

    def run_parallel(self, parallel: ir.Function, work: ir.Function, fields: "Fields") -> None:
        """Has `n_threads` threads, this one among them, do `work` on the fields, and waits for them."""
        b, n_threads = self.b, fields.number("n_threads")
        b.store(self.number(0), fields.address("next"))
        with b.if_else(b.icmp_signed(">", n_threads, self.number(1))) as (several, one):
            with several:
                b.call(parallel, [work, fields.place, b.trunc(n_threads, I32), ir.Constant(I32, 0)])
            with one:
                b.call(work, [fields.place])

    def pointer(self, address: ir.Value) -> ir.Value:
        return self.b.inttoptr(address, POINTER)

    def at(self, base: ir.Value, offset: ir.Value | int) -> ir.Value:
        place = self.number(offset) if isinstance(offset, int) else offset
        return self.b.gep(base, [place], source_etype=I8)

    def load(self, kind: ir.Type, base: ir.Value, offset: ir.Value | int = 0, align: int = 1) -> ir.Value:
        return self.b.load(self.at(base, offset), typ=kind, align=align)

    def store(self, value: ir.Value, base: ir.Value, offset: ir.Value | int = 0, align: int = 1) -> None:
        self.b.store(value, self.at(base, offset), align=align)

    def fetch(self, base: ir.Value, offset: ir.Value | int = 0) -> None:
        """Asks for the 64 bytes there to be brought near; there may be nothing."""
        flags = (ir.Constant(I32, flag) for flag in (0, 3, 1))  # to be read, soon, as data
        self.call("llvm.prefetch.p0", VOID, (self.at(base, offset), *flags))

    def spread(self, value: ir.Value, width: int) -> ir.Value:
        """A vector whose every lane is `value`."""
        kind = vector(value.type, width)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(vector(I32, width), [0] * width))

    def floats(self, value: float, width: int) -> ir.Constant:
        return ir.Constant(vector(FLOAT, width), [value] * width)

    def ints(self, value: int, width: int) -> ir.Constant:
        return ir.Constant(vector(I32, width), [value] * width)

    def call(self, name: str, kind: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """An intrinsic of LLVM's, by its full name."""
        module = self.function.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [value.type for value in arguments]), name)
        return self.b.call(function, list(arguments))

    def fma(self, left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
        width = left.type.count
        return self.call(f"llvm.fma.v{width}f32", left.type, (left, right, added))

    def smaller(self, left: ir.Value, right: ir.Value) -> ir.Value:
        return self.b.select(self.b.icmp_signed("<", left, right), left, right)

    def larger(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Lane by lane; the right one where there is no order. One instruction, where `llvm.maxnum` takes three."""
        return self.b.select(self.b.fcmp_ordered(">", left, right), left, right)

    def least(self, value: ir.Value, most: float) -> ir.Value:
        width = value.type.count
        return self.call(f"llvm.minnum.v{width}f32", value.type, (value, self.floats(most, width)))

    def sum(self, value: ir.Value) -> ir.Value:
        """The sum of all lanes, by halves."""
        while (width := value.type.count) > 1:
            halves = [list(range(start, start + width // 2)) for start in (0, width // 2)]
            low, high = (self.b.shuffle_vector(value, value, ir.Constant(vector(I32, width // 2), o)) for o in halves)
            value = self.b.fadd(low, high)
        return self.b.extract_element(value, ir.Constant(I32, 0))

    def exp2(self, value: ir.Value) -> ir.Value:
        """Two to the power of `value`, 0 and below, to within 3e-7 of its size; 2^-126 for anything less."""
        width = value.type.count
        power, whole = self.power_parts(self.larger(value, self.floats(-126, width)))
        exponent = self.b.add(self.b.fptosi(whole, vector(I32, width)), self.ints(127, width))
        return self.b.fmul(power, self.b.bitcast(self.b.shl(exponent, self.ints(23, width)), value.type))

    def power_parts(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Two to the power of `value` as a number from 0.7 to 1.5, times two to the power of a whole one."""
        width = value.type.count
        whole = self.call(f"llvm.roundeven.v{width}f32", value.type, (value,))
        rest = self.b.fsub(value, whole)
        power = self.floats(EXP2[0], width)
        for factor in EXP2[1:]:
            power = self.fma(power, rest, self.floats(factor, width))
        return power, whole

    def rounded(self, value: ir.Value) -> ir.Value:
        """Finite floats rounded to bfloat16, as the upper halves of i32 lanes whose lower halves are 0."""
        width = value.type.count
        bits = self.b.bitcast(value, vector(I32, width))
        odd = self.b.and_(self.b.lshr(bits, self.ints(16, width)), self.ints(1, width))
        return self.b.and_(self.b.add(bits, self.b.add(odd, self.ints(0x7FFF, width))), self.ints(-0x10000, width))

    def halves(self, value: ir.Value) -> ir.Value:
        """Finite floats rounded to bfloat16, as i16."""
        width = value.type.count
        return self.b.trunc(self.b.lshr(self.rounded(value), self.ints(16, width)), vector(I16, width))

    def widened(self, value: ir.Value) -> ir.Value:
        """Floats of bfloat16 that are given as i16."""
        width = value.type.count
        bits = self.b.shl(self.b.zext(value, vector(I32, width)), self.ints(16, width))
        return self.b.bitcast(bits, vector(FLOAT, width))

    def add_products(self, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
        """`total` plus both products of the pairs of bfloat16 that the i32 lanes hold."""
        width = total.type.count
        pairs = [self.b.bitcast(side, vector(BFloat(), 2 * width)) for side in (left, right)]
        return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}", total.type, (total, *pairs))


class Fields:
    """What a function is given: i64 side by side, by name."""

    def __init__(self, code: Code, place: ir.Value, names: Sequence[str]) -> None:
        self.place = place
        self._code, self._names = code, names

    def address(self, name: str) -> ir.Value:
        return self._code.at(self.place, 8 * self._names.index(name))

    def number(self, name: str) -> ir.Value:
        return self._code.load(I64, self.address(name))

    def pointer(self, name: str) -> ir.Value:
        return self._code.load(POINTER, self.address(name))


class Variable:
    """A value that changes; LLVM keeps it in a register."""

    def __init__(self, code: Code, value: ir.Value) -> None:
        self._code = code
        self._kind = value.type
        self._place = code.top.alloca(value.type)
        self._place.type = POINTER
        self.value = value

    @property
    def value(self) -> ir.Value:
        return self._code.b.load(self._place, typ=self._kind)

    @value.setter
    def value(self, value: ir.Value) -> None:
        self._code.b.store(value, self._place, align=1)


# 2^x for |x| <= 0.5, highest power first: Taylor's series, whose next term is 1.2e-7 at most.
EXP2 = tuple(log(2) ** power / factorial(power) for power in range(6, -1, -1))
