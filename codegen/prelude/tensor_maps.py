"""Helpers with inline PTX for tensor maps: the type of one, copies of tiles, windows and runs, bulk stores.

Coordinates come innermost first, as PTX takes them. Copies to shared memory count their bytes on the mbarrier
whose address they take; stores are waited for in groups. Header-free: a map is 128 bytes that only the
instructions read.
"""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper

#: L2 policies of CUTLASS's TMA::CacheHintSm90, which createpolicy makes for fractions of 1
CACHE_HINTS = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
MAX_RANK = 5
IM2COL_RANKS = (3, 4, 5)

helper(
    "tensor_map",
    """
struct __align__(64) NAME {
    unsigned long long words[16];
};
""",
    "cuda",
    emulated=True,
)
helper(
    "prefetch_map",
    """
FN void NAME(const @tensor_map@& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
""",
    "cuda",
    emulated=True,
)
helper(
    "cluster_rank",
    """
FN $u32 NAME() {
    $u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
""",
    "cuda",
    emulated=True,
)
# Every block of the cluster arrives, with all its threads, before any goes on. The arrival is by default a
# release of the cluster's scope: what barriers that other blocks will use need after they were made.
helper(
    "cluster_barrier",
    """
FN void NAME() {
    asm volatile("barrier.cluster.arrive.aligned;\\n\\tbarrier.cluster.wait.aligned;" ::: "memory");
}
""",
    "cuda",
    emulated=True,
)
helper(
    "give_to_block",
    """
FN void NAME(float value, float* place, int rank) {
    $u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there) : "r"(($u32)__cvta_generic_to_shared(place)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(there), "f"(value) : "memory");
}
""",
    "cuda",
    emulated=True,
)
helper(
    "share_with_block",
    """
FN void NAME(const void* place, int rank) {
    const $u32 here = ($u32)__cvta_generic_to_shared(place);
    $u32 there, a, b, c, d;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(here) : "memory");
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(there), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
""",
    "cuda",
    emulated=True,
)
# The same places of the shared memories of a cluster's blocks, added in the order of ranks. All are under way
# before the first is added.
for _lanes, _form in ((1, ""), (2, ".v2"), (4, ".v4")):
    _words = ", ".join(f"%{i}" for i in range(_lanes))
    _text = f"{{{_words}}}" if _lanes > 1 else _words
    _outputs = ", ".join(f'"=r"(parts[rank][{i}])' for i in range(_lanes))
    helper(
        f"sum_of_cluster_{_lanes}",
        f"""
template <int blocks, class T>
FN void NAME(T* sums, const T* place) {{
    $u32 parts[blocks][{_lanes}];
    #pragma unroll
    for (int rank = 0; rank < blocks; ++rank) {{
        $u32 there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(there) : "r"(($u32)__cvta_generic_to_shared(place)), "r"(rank));
        asm volatile("ld.shared::cluster{_form}.u32 {_text}, [%{_lanes}];"
                     : {_outputs} : "r"(there) : "memory");
    }}
    #pragma unroll
    for (int i = 0; i < {_lanes}; ++i) {{
        T total = reinterpret_cast<const T&>(parts[0][i]);
        #pragma unroll
        for (int rank = 1; rank < blocks; ++rank) total += reinterpret_cast<const T&>(parts[rank][i]);
        sums[i] = total;
    }}
}}
""",
        "cuda",
        emulated=True,
    )


def copy_name(kind: str, rank: int, *, multicast: bool = False, hint: bool = False) -> str:
    """Name of the helper that copies by a map of `rank` dimensions; kind: copy_tile or copy_window."""
    return f"{kind}_{rank}d{'_to' if multicast else ''}{'_hint' if hint else ''}"


def _copy(kind: str, rank: int, multicast: bool, hint: bool) -> None:
    """One form of cp.async.bulk.tensor (PTX ISA, data movement: cp.async.bulk.tensor)."""
    window = kind == "copy_window"
    coordinates = [f"c{i}" for i in range(rank)]
    offsets = [f"o{i}" for i in range(rank - 2)] if window else []
    place = 3
    at = ", ".join(f"%{place + i}" for i in range(rank))
    place += rank
    text = f"[%0], [%1, {{{at}}}], [%2]"
    if window:
        text += f", {{{', '.join(f'%{place + i}' for i in range(len(offsets)))}}}"
        place += len(offsets)
    inputs = ['"r"(to)', '"l"(&map)', '"r"(on)', *(f'"r"({c})' for c in coordinates)]
    inputs += [f'"h"((unsigned short){o})' for o in offsets]
    params = [*(f"int {c}" for c in coordinates), *(f"int {o}" for o in offsets)]
    form = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{'.im2col' if window else ''}"
    form += ".mbarrier::complete_tx::bytes"
    if multicast:
        form += ".multicast::cluster"
        text += f", %{place}"
        place += 1
        inputs.append('"h"((unsigned short)ranks)')
        params.append("int ranks")
    if hint:
        form += ".L2::cache_hint"
        text += f", %{place}"
        inputs.append('"l"(policy)')
        params.append("unsigned long long policy")
    helper(
        copy_name(kind, rank, multicast=multicast, hint=hint),
        f"""
FN void NAME(void* target, const @tensor_map@& map, void* barrier, {", ".join(params)}) {{
    const $u32 to = ($u32)__cvta_generic_to_shared(target), on = ($u32)__cvta_generic_to_shared(barrier);
    asm volatile("{form} {text};"
                 ::{", ".join(inputs)} : "memory");
}}
""",
        "cuda",
        emulated=True,
    )


for _multicast in (False, True):
    for _hint in (False, True):
        for _rank in range(1, MAX_RANK + 1):
            _copy("copy_tile", _rank, _multicast, _hint)
        for _rank in IM2COL_RANKS:
            _copy("copy_window", _rank, _multicast, _hint)
        _form = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        _text, _params, _inputs = "[%0], [%1], %2, [%3]", "", ""
        if _multicast:
            _form, _text = f"{_form}.multicast::cluster", f"{_text}, %4"
            _params, _inputs = ", int ranks", ', "h"((unsigned short)ranks)'
        if _hint:
            _form, _text = f"{_form}.L2::cache_hint", f"{_text}, %{5 if _multicast else 4}"
            _params, _inputs = f"{_params}, unsigned long long policy", f'{_inputs}, "l"(policy)'
        helper(
            f"copy_run{'_to' if _multicast else ''}{'_hint' if _hint else ''}",
            f"""
FN void NAME(void* target, const void* source, void* barrier, int bytes{_params}) {{
    const $u32 to = ($u32)__cvta_generic_to_shared(target), on = ($u32)__cvta_generic_to_shared(barrier);
    asm volatile("{_form} {_text};"
                 ::"r"(to), "l"(source), "r"(bytes), "r"(on){_inputs} : "memory");
}}
""",
            "cuda",
            emulated=True,
        )

for _rank in range(1, MAX_RANK + 1):
    for _adds in (False, True):
        _at = ", ".join(f"%{2 + i}" for i in range(_rank))
        _form = "cp.reduce.async.bulk.tensor" if _adds else "cp.async.bulk.tensor"
        _form += f".{_rank}d.global.shared::cta{'.add' if _adds else ''}.bulk_group"
        _params = ", ".join(f"int c{i}" for i in range(_rank))
        _inputs = ", ".join(f'"r"(c{i})' for i in range(_rank))
        helper(
            f"{'add' if _adds else 'store'}_tile_{_rank}d",
            f"""
FN void NAME(const @tensor_map@& map, const void* source, {_params}) {{
    const $u32 from = ($u32)__cvta_generic_to_shared(source);
    asm volatile("{_form} [%0, {{{_at}}}], [%1];"
                 ::"l"(&map), "r"(from), {_inputs} : "memory");
}}
""",
            "cuda",
            emulated=True,
        )
helper(
    "bulk_commit",
    """
FN void NAME() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
""",
    "cuda",
    emulated=True,
)
# `reads`: wait until shared memory has been read, not until what was written can be seen.
for _name, _suffix in (("bulk_wait", ""), ("bulk_wait_reads", ".read")):
    helper(
        _name,
        f"""
template <int pending>
FN void NAME() {{
    asm volatile("cp.async.bulk.wait_group{_suffix} %0;" ::"n"(pending) : "memory");
}}
""",
        "cuda",
        emulated=True,
    )
