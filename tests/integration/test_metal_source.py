"""The Metal kernels as far as they can be checked without Metal: they are well-formed C++.

Metal's language is C++ with address spaces and a library.  With those stood in for, a C++
compiler checks every name, type and cast.  Whether they compute the right thing is checked at
load, on the machine itself (see layouts.choose).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mlxbun.adapters.mlx_compute.attention_sources import METAL

LIBRARY = """
#include <algorithm>
#include <cmath>
#include <cstddef>
using std::size_t;
using std::min;
#define device
#define threadgroup static
#define threadgroup_barrier(flags)
namespace mem_flags { enum { mem_threadgroup }; }
namespace metal {
float max(float a, float b) { return a > b ? a : b; }
float exp2(float a) { return std::exp2(a); }
}
float simd_shuffle_xor(float value, int) { return value; }
struct uint3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; };
"""
PLACES = (
    "uint3 threadgroup_position_in_grid, uint3 thread_position_in_threadgroup, "
    "uint3 threadgroups_per_grid, uint3 threads_per_threadgroup"
)
ATTENTION = (
    "template <typename T, int DIM, int KEY_HEADS, int QUERIES, int PAGE, int WARPS, "
    "int UNROLL> void NAME("
    "const T* queries, const T* new_keys, const T* new_values, const T* keys, "
    "const T* values, const int* table, const int* table_shape, "
    "const int* lengths, T* out, float* parts, float* sums, "
)
SIGNATURES = {
    "attend": ATTENTION,
    "attend_parts": ATTENTION,
    "merge": "template <typename T, int DIM> void NAME(const float* parts, const float* sums, "
    "const int* sums_shape, T* out, ",
    "fill": "template <typename T, int HEADS, int PER_TOKEN, int PAGE> void NAME("
    "const T* new_keys, const int* new_keys_shape, const T* new_values, const T* keys, "
    "const T* values, const int* pages, const int* num_tokens, int* done, ",
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_metal_kernel_is_well_formed(name: str, tmp_path: Path) -> None:
    call = {
        "attend": "attend<float, 128, 8, 4, 64, 4, 1>"
        "(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {})",
        "attend_parts": "attend_parts<float, 64, 8, 2, 64, 4, 4>"
        "(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {})",
        "merge": "merge<float, 128>(0, 0, 0, 0, {}, {}, {}, {})",
        "fill": "fill<float, 8, 16, 64>(0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {})",
    }[name]
    source = tmp_path / "kernel.cpp"
    source.write_text(
        LIBRARY
        + METAL.header.replace("SCALE_VALUE", "0.1f")
        + SIGNATURES[name].replace("NAME", name)
        + PLACES
        + ") {"
        + METAL.bodies[name]
        + "}\nint main() { "
        + call
        + "; }\n"
    )
    done = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-Wno-unknown-pragmas", str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
