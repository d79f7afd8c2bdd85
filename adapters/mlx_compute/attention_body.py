"""The text of decode attention over pages, in CUDA; attention_sources makes kernels of it.

Constants: `T`, `DIM`, `KEY_HEADS`, `QUERIES` (query heads a block), `PAGE`, `WARPS`, `UNROLL`
(tokens at a time).
"""

from __future__ import annotations

# A thread of a group of 8 holds every eighth pack of 16 bytes of a head; a group takes UNROLL
# tokens at a time.  The first are under way while FRESH finds the new token's query, key, value.
ATTEND = r"""
  constexpr int PACK = 16 / sizeof(T);
  constexpr int PACKS = DIM / (8 * PACK);
  constexpr int MINE = PACKS * PACK;
  constexpr int GROUPS = WARPS * 4;
  using P = Pack<T, PACK>;
  __shared__ float shared_acc[WARPS][QUERIES][DIM];
  __shared__ float shared_max[WARPS][QUERIES];
  __shared__ float shared_sum[WARPS][QUERIES];
  const int lane = threadIdx.x & 7, group = threadIdx.x >> 3;
  const int warp = threadIdx.x >> 5, in_warp = threadIdx.x & 31;
  const int first = blockIdx.x * QUERIES, row = blockIdx.y, split = blockIdx.z;
  const int heads = gridDim.x * QUERIES, key_heads = KEY_HEADS, splits = gridDim.z;
  const int key_head = first / (heads / key_heads);
  const bool writes = first % (heads / key_heads) == 0;
  const int length = LENGTH;
  const int part = (length + splits) / splits;
  const int begin = split * part;
  const int end = min(begin + part, length + 1);
  P key[UNROLL][PACKS], value[UNROLL][PACKS];
#define LOAD(base) \
  _Pragma("unroll") for (int u = 0; u < UNROLL; u++) { \
    const int token = (base) + u * GROUPS + group; \
    const int safe = token < end ? token : begin; \
    const size_t page = PAGE_OF(safe / PAGE); \
    const size_t place = ((page * key_heads + key_head) * PAGE + safe % PAGE) * DIM; \
    const P* k = reinterpret_cast<const P*>(keys + place); \
    const P* v = reinterpret_cast<const P*>(values + place); \
    _Pragma("unroll") for (int p = 0; p < PACKS; p++) { \
      key[u][p] = k[p * 8 + lane]; value[u][p] = v[p * 8 + lane]; \
    } \
  }
  if (begin < end) LOAD(begin)
  FRESH
  float q[QUERIES][MINE], acc[QUERIES][MINE], top[QUERIES], sum[QUERIES];
#pragma unroll
  for (int g = 0; g < QUERIES; g++) {
    const P* from = query_at(g);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      const P pack = from[p * 8 + lane];
#pragma unroll
      for (int i = 0; i < PACK; i++) q[g][p * PACK + i] = float(pack.at[i]) * SCALE;
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) acc[g][i] = 0.0f;
    top[g] = LOWEST;
    sum[g] = 0.0f;
  }
  for (int base = begin; base < end; base += GROUPS * UNROLL) {
    bool live[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int token = base + u * GROUPS + group;
      live[u] = token < end;
      if (token == length) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
          key[u][p] = fresh_key[p * 8 + lane];
          value[u][p] = fresh_value[p * 8 + lane];
        }
        if (writes) {
          const size_t page = PAGE_OF(token / PAGE);
          const size_t place = ((page * key_heads + key_head) * PAGE + token % PAGE) * DIM;
          P* to_k = const_cast<P*>(reinterpret_cast<const P*>(keys + place));
          P* to_v = const_cast<P*>(reinterpret_cast<const P*>(values + place));
#pragma unroll
          for (int p = 0; p < PACKS; p++) {
            to_k[p * 8 + lane] = key[u][p];
            to_v[p * 8 + lane] = value[u][p];
          }
        }
      }
    }
#pragma unroll
    for (int g = 0; g < QUERIES; g++) {
      float score[UNROLL], above = top[g];
#pragma unroll
      for (int u = 0; u < UNROLL; u++) {
        score[u] = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
          for (int i = 0; i < PACK; i++) score[u] += q[g][p * PACK + i] * float(key[u][p].at[i]);
        score[u] += __shfl_xor_sync(0xffffffff, score[u], 1);
        score[u] += __shfl_xor_sync(0xffffffff, score[u], 2);
        score[u] += __shfl_xor_sync(0xffffffff, score[u], 4);
        score[u] = live[u] ? score[u] : LOWEST;
        above = fmaxf(above, score[u]);
      }
      const float fade = exp2f(top[g] - above);
      top[g] = above;
      sum[g] *= fade;
#pragma unroll
      for (int i = 0; i < MINE; i++) acc[g][i] *= fade;
#pragma unroll
      for (int u = 0; u < UNROLL; u++) {
        const float weight = live[u] ? exp2f(score[u] - above) : 0.0f;
        sum[g] += weight;
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
          for (int i = 0; i < PACK; i++)
            acc[g][p * PACK + i] += weight * float(value[u][p].at[i]);
      }
    }
    if (base + GROUPS * UNROLL < end) LOAD(base + GROUPS * UNROLL)
  }
#pragma unroll
  for (int g = 0; g < QUERIES; g++) {
#pragma unroll
    for (int apart = 8; apart < 32; apart *= 2) {
      const float other = __shfl_xor_sync(0xffffffff, top[g], apart);
      const float above = fmaxf(top[g], other);
      const float fade = exp2f(top[g] - above);
      sum[g] *= fade;
      sum[g] += __shfl_xor_sync(0xffffffff, sum[g], apart);
#pragma unroll
      for (int i = 0; i < MINE; i++) {
        acc[g][i] *= fade;
        acc[g][i] += __shfl_xor_sync(0xffffffff, acc[g][i], apart);
      }
      top[g] = above;
    }
    if (in_warp < 8) {
#pragma unroll
      for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < PACK; i++)
          shared_acc[warp][g][(p * 8 + lane) * PACK + i] = acc[g][p * PACK + i];
      if (lane == 0) { shared_max[warp][g] = top[g]; shared_sum[warp][g] = sum[g]; }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < QUERIES * DIM; at += WARPS * 32) {
    const int g = at / DIM, d = at % DIM;
    float above = LOWEST, total = 0.0f, all = 0.0f;
    for (int w = 0; w < WARPS; w++) above = fmaxf(above, shared_max[w][g]);
    for (int w = 0; w < WARPS; w++) {
      const float fade = exp2f(shared_max[w][g] - above);
      all += shared_sum[w][g] * fade;
      total += shared_acc[w][g][d] * fade;
    }
    FINISH
  }
#undef LOAD
"""
APART = r"""
  const size_t at_new = (size_t(row) * key_heads + key_head) * DIM;
  const P* fresh_key = reinterpret_cast<const P*>(new_keys + at_new);
  const P* fresh_value = reinterpret_cast<const P*>(new_values + at_new);
  const size_t at_query = (size_t(row) * heads + first) * DIM;
#define query_at(g) (reinterpret_cast<const P*>(queries + at_query + (g) * DIM))
"""
# The projections' joint output of a row: a group of 8 takes a head, norms and rotates it.
JOINT = r"""
  __shared__ alignas(16) T fresh[(QUERIES + 2) * DIM];
  if (group < (QUERIES + 5) / 4 * 4) {
    const int which = group < QUERIES + 2 ? group : QUERIES + 1;
    const int head = which < QUERIES ? first + which
        : which == QUERIES ? heads + key_head : heads + key_heads + key_head;
    const P* from = reinterpret_cast<const P*>(
        joint + (size_t(row) * (heads + 2 * key_heads) + head) * DIM);
    float v[MINE];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      const P pack = from[p * 8 + lane];
#pragma unroll
      for (int i = 0; i < PACK; i++) v[p * PACK + i] = float(pack.at[i]);
    }
    if (NORMED) {
      float square = 0.0f;
#pragma unroll
      for (int i = 0; i < MINE; i++) square += v[i] * v[i];
      square += __shfl_xor_sync(0xffffffff, square, 1);
      square += __shfl_xor_sync(0xffffffff, square, 2);
      square += __shfl_xor_sync(0xffffffff, square, 4);
      const float by = rsqrtf(square / DIM + EPS);
      if (which <= QUERIES) {
        const T* gain = gains + (which < QUERIES ? 0 : DIM);
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
          for (int i = 0; i < PACK; i++)
            v[p * PACK + i] =
                float(T(v[p * PACK + i] * by * float(gain[(p * 8 + lane) * PACK + i])));
      }
    }
    const float* turn = turns + size_t(row) * DIM;
    P rotated[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
      for (int i = 0; i < PACK; i++) {
        const int at = ((p * 8 + lane) * PACK + i) % (DIM / 2);
        const bool upper = (p * 8 + lane) * PACK >= DIM / 2;
        const float other = PACKS > 1 ? v[((p + PACKS / 2) % PACKS) * PACK + i]
            : __shfl_xor_sync(0xffffffff, v[p * PACK + i], 4);
        const float mine = v[p * PACK + i], sine = turn[DIM / 2 + at];
        const float turned = mine * turn[at] + (upper ? other : -other) * sine;
        rotated[p].at[i] = T(which > QUERIES ? mine : turned);
      }
    if (group < QUERIES + 2)
#pragma unroll
      for (int p = 0; p < PACKS; p++)
        reinterpret_cast<P*>(fresh)[which * (DIM / PACK) + p * 8 + lane] = rotated[p];
  }
  __syncthreads();
  const P* fresh_key = reinterpret_cast<const P*>(fresh + QUERIES * DIM);
  const P* fresh_value = reinterpret_cast<const P*>(fresh + (QUERIES + 1) * DIM);
#define query_at(g) (reinterpret_cast<const P*>(fresh + (g) * DIM))
"""
# Where a row's length and pages are found.
APART_PLACES = """
#define LENGTH lengths[row]
#define PAGE_OF(i) table[row * width + (i)]
  const int width = table_shape[1];
"""
JOINT_PLACES = """
#define LENGTH places[row * width]
#define PAGE_OF(i) places[row * width + 1 + (i)]
  const int width = places_shape[1];
"""
WHOLE = "out[(size_t(row) * heads + first + g) * DIM + d] = T(total / all);"
PARTS = """
    const size_t to = (size_t(row) * heads + first + g) * splits + split;
    parts[to * DIM + d] = total;
    if (d == 0) { sums[to * 2] = above; sums[to * 2 + 1] = all; }
"""
