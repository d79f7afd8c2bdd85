"""The CUDA kernel for products of few rows, with what a decode step does before and after them.

A warp holds 16 or 32 rows of the weight and all rows of the input; the warps of a block lie side by
side or divide the inner dimension.  The order of the inner dimension is free as long as both sides
agree, so a thread loads 16 bytes in a row and feeds them to two instructions (m16n8k16 of the PTX
manual).  Every weight is read once, and steps of weights are under way while others are multiplied.

One text serves four forms:

* *plain*: x @ w.T, plus a bias, in one or several arrays;
* *normed*: the input is a flow: a hidden state that an RMS norm is still to be applied to;
* *gated*: normed, and w is a gate's rows and then the rows that it gates: silu(a) * b;
* *adding*: the product is added to the state of a flow, and another flow comes out.

A *flow* is one array [3, rows, k], because each array that a kernel reads or writes costs the host
half a microsecond or more: the state; the state times the norm's gain; and the state's sums of
squares, [rows, parts] float32 at the start of the last third.  What is missing of the norm then is
one factor a row, which is applied to the product.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from mlxbun.adapters.mlx_compute.cuda_kernels import CudaKernel
from mlxbun.adapters.mlx_compute.few_rows_blocking import Blocking


class Form(Struct, frozen=True):
    """What a kernel is made for.

    `columns_a_sum`: of how many columns a sum of squares of the flow is.  A plain product's input
    has `num_axes` and its output `parts`.  Dimensions are not in here: models share kernels, each
    of which takes two seconds to compile, and where a compiler knows them, it puts the loads of
    inputs back to where they are used.
    """

    dtype: str
    blocking: Blocking
    normed: bool = False
    gated: bool = False
    adds: bool = False
    biased: bool = False
    eps: float = 0.0
    columns_a_sum: int = 1
    num_axes: int = 2
    parts: int = 1


@cache
def kernel(form: Form) -> CudaKernel:
    """Return the kernel: called with `inputs` in the order of `input_names`."""
    way = form.blocking
    word = "".join(
        letter
        for letter, is_so in zip(
            "ngab", (form.normed, form.gated, form.adds, form.biased), strict=True
        )
        if is_so
    )
    numbers = (
        way.groups, way.tiles, way.wide, way.deep, way.ahead, way.inputs_ahead,
        form.num_axes, form.parts, form.columns_a_sum,
    )  # fmt: skip
    eps = form.eps.hex().replace(".", "p").replace("-", "m").replace("+", "")
    return CudaKernel(
        name=f"mlxbun_product_{form.dtype}_{word}_{'_'.join(map(str, numbers))}_{eps}",
        input_names=_inputs(form),
        output_names=_outputs(form),
        header=_HEADER,
        source=_constants(form) + _body(form),
    )


def _inputs(form: Form) -> list[str]:
    return [
        "flow" if form.normed else "x",
        "weight",
        *(["flow", "gain"] if form.adds else []),
        *(["bias"] if form.biased else []),
        *(["ends"] if form.parts > 1 else []),
    ]


def _outputs(form: Form) -> list[str]:
    if form.adds:
        return ["after"]
    return [f"out{i}" for i in range(form.parts)]


def _constants(form: Form) -> str:
    way = form.blocking
    numbers = {
        "GROUPS": way.groups, "TILES": way.tiles, "WIDE": way.wide, "DEEP": way.deep,
        "AHEAD": way.ahead, "INPUTS_AHEAD": way.inputs_ahead,
    }  # fmt: skip
    flags = {
        "NORMED": form.normed,
        "GATED": form.gated,
        "ADDS": form.adds,
        "BIASED": form.biased,
    }
    dtype = {"bfloat16": "__nv_bfloat16", "float16": "__half"}[form.dtype]
    if form.normed:
        rows, place = "flow_shape[1]", "flow + size_t(rows) * inner"
    else:
        rows = " * ".join(f"x_shape[{axis}]" for axis in range(form.num_axes - 1))
        place = "x"
    squares = "reinterpret_cast<const float*>(flow + size_t(2) * rows * inner)"
    lines = [
        f"using T = {dtype};",
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
        f"const float EPS = {form.eps:.9e}f;",
        f"const int rows = {rows}, outer = weight_shape[0], inner = weight_shape[1];",
        f"const int parts = inner / {form.columns_a_sum};",
        f"const T* input = {place};",
        f"const float* squares = {squares if form.normed else 'nullptr'};",
        f"const T* residual = {'flow' if form.adds else 'nullptr'};",
        *(
            ["T* out0 = after;"]
            if form.adds
            else ["const T* gain = nullptr;", "T* after = nullptr;"]
        ),
        *([] if form.biased else ["const T* bias = nullptr;"]),
    ]
    return "".join(f"  {line}\n" for line in lines)


def _body(form: Form) -> str:
    if form.parts == 1:
        return _BODY.replace("WRITE", "out0[to] = T(total);")
    # Each part goes where it belongs: a split is no work for the device, but some for the host.
    choices = "\n".join(
        f"        if (part == {i}) out{i}[size_t(row) * width + at_part] = T(total);"
        for i in range(form.parts)
    )
    return _BODY.replace("WRITE", _FIND_PART + choices)


_FIND_PART = """
        int part = 0;
        while (place >= ends[part]) part++;
        const int start = part ? ends[part - 1] : 0;
        const int width = ends[part] - start, at_part = place - start;
"""
_HEADER = """
template <typename T> struct Name { static constexpr bool half = false; };
template <> struct Name<__half> { static constexpr bool half = true; };

template <typename T>
__device__ __forceinline__ void multiply(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (Name<T>::half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Weights are read once a step: they stay out of the first cache, which the input needs.
__device__ __forceinline__ uint4 load_weight(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__device__ __forceinline__ uint4 load_input(const uint4* from, bool is_row) {
  return is_row ? __ldg(from) : make_uint4(0, 0, 0, 0);
}
"""
_BODY = """
  constexpr int ROWS = GROUPS * 8;
  constexpr int WARPS = WIDE * DEEP;
  constexpr int THREADS = 32 * WARPS;
  constexpr int HEIGHT = 16 * TILES * WIDE;           // rows of the weight a block
  constexpr int WIDTH = GATED ? HEIGHT / 2 : HEIGHT;  // columns of the output a block
  constexpr int PITCH = HEIGHT + 4;                   // so that a store's lanes have other banks
  constexpr int FIT = 11264 / (ROWS * PITCH);         // of 45 KiB
  constexpr int BUFFERS = FIT >= DEEP ? DEEP : FIT > 0 ? FIT : 1;
  constexpr int MINE = (ROWS * WIDTH + THREADS - 1) / THREADS;
  constexpr int NORMS = (ROWS + WARPS - 1) / WARPS;
  __shared__ float shared[BUFFERS][ROWS * PITCH];
  __shared__ float factor[ROWS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int side = warp % WIDE, depth = warp / WIDE;
  const int line = lane >> 2, quarter = lane & 3;
  const int tile = blockIdx.x;
  const int stride = inner / 8;             // packs of 16 bytes a row
  const int steps = inner / (32 * DEEP);    // of 32 elements, for each warp
  const int from = depth * steps * 4 + quarter;
  const int first = GATED ? tile * WIDTH + side * 16 : tile * HEIGHT + side * 16 * TILES;
  const size_t apart = GATED ? size_t(outer / 2) * stride : size_t(16) * stride;
  const uint4* w = reinterpret_cast<const uint4*>(weight) + size_t(first + line) * stride + from;
  const uint4* in = reinterpret_cast<const uint4*>(input) + size_t(line) * stride + from;
  uint4 a[AHEAD][TILES][2];
#pragma unroll
  for (int d = 0; d < AHEAD; d++)
    if (d < steps)
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        a[d][t][0] = load_weight(w + d * 4 + t * apart);
        a[d][t][1] = load_weight(w + d * 4 + t * apart + size_t(8) * stride);
      }
  if (NORMED) {  // while the first weights come
    float sum[NORMS];
#pragma unroll
    for (int m = 0; m < NORMS; m++) {
      const int row = m * WARPS + warp;
      sum[m] = row < rows && lane < parts ? squares[row * parts + lane] : 0.0f;
    }
    for (int i = lane + 32; i < parts; i += 32)
#pragma unroll
      for (int m = 0; m < NORMS; m++)
        if (m * WARPS + warp < rows) sum[m] += squares[(m * WARPS + warp) * parts + i];
#pragma unroll
    for (int m = 0; m < NORMS; m++) {
#pragma unroll
      for (int k = 16; k; k /= 2) sum[m] += __shfl_xor_sync(0xffffffff, sum[m], k);
      const int row = m * WARPS + warp;
      if (lane == 0 && row < ROWS) factor[row] = rsqrtf(sum[m] / inner + EPS);
    }
  }
  float c[TILES][GROUPS][4];
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[t][g][i] = 0.0f;
  uint4 b[INPUTS_AHEAD][GROUPS];
#pragma unroll
  for (int d = 0; d < INPUTS_AHEAD - 1; d++)
    if (d < steps)
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
        b[d][g] = load_input(in + d * 4 + size_t(g * 8) * stride, g * 8 + line < rows);
  for (int base = 0; base < steps; base += AHEAD) {
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
      const int step = base + d;
      if (step < steps) {
        const int next = step + INPUTS_AHEAD - 1;
        if (next < steps)
#pragma unroll
          for (int g = 0; g < GROUPS; g++)
            b[(d + INPUTS_AHEAD - 1) % INPUTS_AHEAD][g] =
                load_input(in + next * 4 + size_t(g * 8) * stride, g * 8 + line < rows);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int g = 0; g < GROUPS; g++) {
            const uint4 low = a[d][t][0], high = a[d][t][1], v = b[d % INPUTS_AHEAD][g];
            multiply<T>(c[t][g], low.x, high.x, low.y, high.y, v.x, v.y);
            multiply<T>(c[t][g], low.z, high.z, low.w, high.w, v.z, v.w);
          }
        if (step + AHEAD < steps)
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            a[d][t][0] = load_weight(w + (step + AHEAD) * 4 + t * apart);
            a[d][t][1] = load_weight(w + (step + AHEAD) * 4 + t * apart + size_t(8) * stride);
          }
      }
    }
  }
  T had[MINE], by[MINE];
  if (ADDS)
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int at = m * THREADS + threadIdx.x, row = at / WIDTH;
      const int place = tile * WIDTH + at % WIDTH;
      if (row < rows) {
        had[m] = residual[size_t(row) * outer + place];
        by[m] = gain[place];
      }
    }
#pragma unroll
  for (int round = 0; round < DEEP; round += BUFFERS) {
    if (depth >= round && depth < round + BUFFERS) {
      float* to = shared[depth - round];
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int at = (g * 8 + quarter * 2 + (i & 1)) * PITCH
                + (side * TILES + t) * 16 + line + (i & 2) * 4;
            to[at] = round ? to[at] + c[t][g][i] : c[t][g][i];
          }
    }
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < MINE; m++) {
    const int at = m * THREADS + threadIdx.x, row = at / WIDTH, column = at % WIDTH;
    const bool live = row < rows;
    // a gate and what it gates lie beside each other in a warp's two tiles
    const int held = row * PITCH + (GATED ? column / 16 * 32 + column % 16 : column);
    const int place = tile * WIDTH + column;
    const size_t to = size_t(row) * (GATED ? outer / 2 : outer) + place;
    float total = 0.0f, up = 0.0f, square = 0.0f;
    if (live) {
#pragma unroll
      for (int v = 0; v < BUFFERS; v++) {
        total += shared[v][held];
        if (GATED) up += shared[v][held + 16];
      }
      if (NORMED) {
        total *= factor[row];
        up *= factor[row];
      }
      if (GATED) {
        const float gate = float(T(total));
        total = float(T(gate / (1.0f + __expf(-gate)))) * float(T(up));
      } else if (ADDS) {
        const T added = T(float(T(total)) + float(had[m]));
        total = float(added);
        after[size_t(rows) * outer + to] = T(total * float(by[m]));
        square = total * total;
      } else if (BIASED) {
        total += float(bias[place]);
      }
      {
        WRITE
      }
    }
    if (ADDS) {
#pragma unroll
      for (int k = (WIDTH < 32 ? WIDTH : 32) / 2; k; k /= 2)
        square += __shfl_xor_sync(0xffffffff, square, k);
      float* sums = reinterpret_cast<float*>(after + size_t(2) * rows * outer);
      if (live && column == 0) sums[row * (outer / WIDTH) + tile] = square;
    }
  }
"""
