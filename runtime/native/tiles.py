"""AMX: the processor multiplies 16 rows by 16 columns of 32 bfloat16 at a time, in registers that hold such tiles."""

from llvmlite import ir

from runtime.native.code import I8, VOID, Code, vector
from runtime.native.machine import cpu_multiplies_tiles

ROWS = 16  # of a tile, at most,
ROW_BYTES = 64  # and how long each is
TILE = ROWS * ROW_BYTES
N_TILES = 8
_FIRST_ROWS = 48  # where in the palette the rows of each tile stand
_PALETTE = bytes([1, *[0] * 15, *[ROW_BYTES, 0] * N_TILES, *[0] * 16, *[ROWS] * N_TILES, *[0] * 8])


class TileCode(Code):
    """A function's body that uses tiles. They are given by their numbers."""

    def configure(self, n_rows: dict[int, ir.Value] | None = None) -> None:
        """Before tiles are used. `n_rows` (i8): of tiles that have fewer than the others.

        Raises `RuntimeError` where the system does not grant them: the code would end the process.
        """
        if not cpu_multiplies_tiles():
            raise RuntimeError("this processor or system has no tiles")
        palette = self.room(len(_PALETTE))
        self.store(ir.Constant(vector(I8, len(_PALETTE)), list(_PALETTE)), palette)
        for tile, count in (n_rows or {}).items():
            self.store(count, palette, _FIRST_ROWS + tile)
        self.call("llvm.x86.ldtilecfg", VOID, [palette])

    def end(self) -> None:
        self.call("llvm.x86.tilerelease", VOID, [])
        super().end()

    def clear_tile(self, tile: int) -> None:
        self.call("llvm.x86.tilezero", VOID, [_number(tile)])

    def load_tile(self, tile: int, place: ir.Value, stride: int | ir.Value = ROW_BYTES) -> None:
        """From rows `stride` bytes apart."""
        self.call("llvm.x86.tileloadd64", VOID, [_number(tile), place, self._stride(stride)])

    def store_tile(self, tile: int, place: ir.Value, stride: int | ir.Value = ROW_BYTES) -> None:
        self.call("llvm.x86.tilestored64", VOID, [_number(tile), place, self._stride(stride)])

    def multiply_tiles(self, sums: int, left: int, right: int) -> None:
        """Adds the products of rows of pairs of bfloat16 and columns of pairs to a tile of floats."""
        self.call("llvm.x86.tdpbf16ps", VOID, [_number(tile) for tile in (sums, left, right)])

    def _stride(self, stride: int | ir.Value) -> ir.Value:
        return self.number(stride) if isinstance(stride, int) else stride


def _number(tile: int) -> ir.Constant:
    return ir.Constant(I8, tile)
