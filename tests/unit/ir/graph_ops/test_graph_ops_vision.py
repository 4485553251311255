"""Boxes and detection against brute force, on every level."""

import itertools

import numpy as np
import pytest
from graph_op_agreement import agree, check_levels

import tilewright as tw
from tilewright.ir import InputError, VerifyError, parse, verify

RNG = np.random.default_rng(5)


def randoms(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def relay(op, arrays, attrs, tmp_path, constants=()):
    """The module of one Relay operator; constants are scalars written behind the inputs."""
    file = tmp_path / "op.relay"
    types = [f"Tensor[({', '.join(map(str, a.shape))}), {a.dtype}]" for a in arrays]
    params = ", ".join(f"%x{i}: {t}" for i, t in enumerate(types))
    names = ", ".join([*(f"%x{i}" for i in range(len(arrays))), *constants])
    file.write_text(f'#[version = "0.0.5"]\ndef @main({params}) {{\n  {op}({names}, {attrs})\n}}\n')
    return tw.frontends.relay.load(str(file))


def boxes_of(*shape):
    """Boxes on a coarse lattice, so that overlaps are far from every threshold."""
    corner = RNG.integers(0, 6, (*shape, 2))
    return np.concatenate([corner, corner + RNG.integers(1, 5, (*shape, 2))], -1).astype(np.float32)


# -- lists of boxes ------------------------------------------------------------------------------------------
def test_overlap_by_hand():
    boxes = np.array([[[0, 0, 2, 2], [3, 1, 1, 3], [5, 5, 5, 5]]], np.float32)
    (out,) = agree("box_overlap", boxes)
    np.testing.assert_allclose(out[0], [[1, 1 / 7, 0], [1 / 7, 1, 0], [0, 0, 0]], atol=1e-6)
    (out,) = agree("box_overlap", boxes, offset=1.0, sort_corners=False)
    # the second has width -1 then, and the third is one element
    assert out[0, 2, 2] == 1
    assert out[0, 0, 0] == 1


def test_greedy_keep_against_a_loop():
    candidates = RNG.random((3, 40)) < 0.8
    suppresses = RNG.random((3, 40, 40)) < 0.08
    wanted = np.zeros_like(candidates)
    for b, i in np.ndindex(3, 40):
        wanted[b, i] = candidates[b, i] and not (wanted[b, :i] & suppresses[b, i, :i]).any()
    (out,) = agree("greedy_keep", candidates, suppresses, compiled=True)
    np.testing.assert_array_equal(out, wanted)
    assert 0 < out.sum() < candidates.sum()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_greedy_keep_of_short_lists(n):
    agree("greedy_keep", np.ones((2, n), bool), np.ones((2, n, n), bool), compiled=n > 0)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 9), np.int64), ((2, 9, 3), np.float32), ((1, 5, 2, 2), np.float16)]
)
def test_compact_against_a_loop(shape, dtype):
    x = (randoms(*shape) * 10).astype(dtype)
    keep = RNG.random(shape[:2]) < 0.5
    out, count = agree("compact", x, keep, value=-1, compiled=dtype is np.float32)
    for b in range(shape[0]):
        np.testing.assert_array_equal(out[b, : count[b]], x[b][keep[b]])
        assert (out[b, count[b] :] == -1).all()
    assert count.dtype == np.int32


RECUR = """module @m {
  tensor.func @main(%x: f32[2, 6], %y: f32[6, 6]) -> f32[2, 6] {
    %0 = tensor.recur(%x, %y, par = (a: 2, i: 6), red = (t: 6), reads = [[a, i], [i, t]],
      dim = "i") : f32[2, 6] {
      ^(%e: f32, %r: f32, %acc: f32) %s = scalar.fma(%e, %r, %acc) : f32 scalar.yield(%s) }
    tensor.return(%0)
  }
}"""


def test_a_linear_recurrence_solves_a_triangular_system():
    x, y = randoms(2, 6), randoms(6, 6)
    (out,) = tw.interpret(parse(RECUR), x, y)
    wanted = np.linalg.solve(np.eye(6) - np.tril(y, -1).astype(np.float64), x.T.astype(np.float64)).T
    np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('dim = "i"', 'dim = "t"', "dimension of the recurrence"),
        ("red = (t: 6)", "red = (t: 5)", "extent 6"),
        ("[[a, i], [i, t]]", "[[a, t], [i, t]]", "start"),
        ("[i, t]]", "[i, t + 1]]", "without a fill"),
        ("%r: f32, ", "", "parameters"),
    ],
)
def test_recurrences_that_do_not_verify(old, new, message):
    text = RECUR.replace("%s = scalar.fma(%e, %r, %acc) : f32 scalar.yield(%s)", "scalar.yield(%acc)")
    with pytest.raises(VerifyError, match=message):
        verify(parse(text.replace(old, new)))


# -- suppression ---------------------------------------------------------------------------------------------
def overlap(a, c):
    low, high = np.maximum(a[:2], c[:2]), np.minimum(a[2:], c[2:])
    common = np.prod(np.maximum(high - low, 0))
    union = np.prod(a[2:] - a[:2]) + np.prod(c[2:] - c[:2]) - common
    return 0 if union <= 0 else common / union


def suppressed(data, valid, limit, threshold, *, force, top_k, coord, score, cls):
    """Rows and places as Relay gives them, one list, one row after the other."""
    out, places = np.full_like(data, -1), np.full(len(data), -1)
    if threshold <= 0:
        out[:valid], places[:valid] = data[:valid], np.arange(valid)
        return out, places
    order = sorted(range(valid), key=lambda i: -data[i, score])
    chosen = []
    for j, i in enumerate(order[: top_k if top_k > 0 else None]):
        row = data[i]
        if len(chosen) == limit:
            break
        if row[score] > 0:
            rivals = [c for c in chosen if cls < 0 or (c[cls] >= 0 and (force or c[cls] == row[cls]))]
            if any(overlap(c[coord : coord + 4], row[coord : coord + 4]) >= threshold for c in rivals):
                continue
            chosen.append(row)
        out[j], places[j] = row, i
    return out, places


def rows_of(batch, count):
    """Rows [class, score, box] with distinct scores, some not positive, and some negative classes."""
    score = (RNG.permuted(np.tile(np.arange(count), (batch, 1)), axis=1) - 2) / count
    cls = RNG.integers(-1, 3, (batch, count))
    return np.concatenate([np.stack([cls, score], -1), boxes_of(batch, count)], -1).astype(np.float32)


@pytest.mark.parametrize(
    ("limit", "threshold", "force", "top_k", "cls"),
    [
        (-1, 0.35, False, -1, 0),
        (4, 0.35, True, -1, 0),
        (-1, 0.2, False, 9, -1),
        (3, 0.0, True, 5, 0),
        (0, 0.5, False, -1, 0),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_non_max_suppression(limit, threshold, force, top_k, cls, known, tmp_path):
    data, valid = rows_of(2, 24), np.array([24, 15], np.int32)
    indices = np.tile(np.arange(24, dtype=np.int32)[::-1], (2, 1)).copy()
    arrays, constants = [data, valid, indices], [f"{limit}", f"{threshold}f"]
    if not known:
        arrays += [np.array(limit, np.int32), np.array(threshold, np.float32)]
        constants = []
    attrs = f"force_suppress={force}, top_k={top_k}, coord_start=2, score_index=1, id_index={cls}"
    wanted = [
        suppressed(d, v, limit, threshold, force=force, top_k=top_k, coord=2, score=1, cls=cls)
        for d, v in zip(data, valid, strict=True)
    ]
    rows = np.stack([w[0] for w in wanted])
    m = relay("vision.non_max_suppression", arrays, f"{attrs}, return_indices=False", tmp_path, constants)
    (out,) = check_levels(m, arrays, compiled=known and limit == 4)
    np.testing.assert_allclose(out, rows, atol=1e-6)
    m = relay("vision.non_max_suppression", arrays, attrs, tmp_path, constants)
    out, count = check_levels(m, arrays)
    for b, (_, places) in enumerate(wanted):
        named = indices[b][places[places >= 0]]
        assert count[b, 0] == len(named)
        np.testing.assert_array_equal(out[b], np.r_[named, [-1] * (24 - len(named))])
    m = relay(
        "vision.non_max_suppression",
        arrays,
        f"{attrs}, return_indices=0, invalid_to_bottom=1",
        tmp_path,
        constants,
    )
    (out,) = check_levels(m, arrays)
    for b in range(2):
        kept = rows[b][rows[b][:, 0] >= 0]
        np.testing.assert_allclose(out[b, : len(kept)], kept, atol=1e-6)
        assert (out[b, len(kept) :] == -1).all()


@pytest.mark.parametrize("id_index", [-1, 0])
def test_get_valid_counts(id_index, tmp_path):
    data = rows_of(3, 10)
    m = relay("vision.get_valid_counts", [data], f"id_index={id_index}, score_index=1", tmp_path, ["0.2f"])
    count, out, indices = check_levels(m, [data])
    for b in range(3):
        good = (data[b, :, 1] > 0.2) & ((data[b, :, 0] >= 0) | (id_index < 0))
        np.testing.assert_array_equal(indices[b], np.r_[np.flatnonzero(good), [-1] * (10 - good.sum())])
        np.testing.assert_allclose(out[b, : count[b]], data[b][good], atol=1e-6)


@pytest.mark.parametrize(("limit", "least"), [(0, 0.1), (2, -9.0)])
def test_all_class_non_max_suppression(limit, least, tmp_path):
    boxes = boxes_of(2, 8)
    scores = (RNG.permuted(np.tile(np.arange(8), (2, 3, 1)), axis=2) / 8 - 0.3).astype(np.float32)
    constants = [f"{limit}", "0.3f", f"{least}f"]
    wanted = []
    for b, c in itertools.product(range(2), range(3)):
        rows = np.concatenate([np.zeros((8, 1)), scores[b, c][:, None], boxes[b]], -1)
        valid = scores[b, c] > least
        places = suppressed(
            rows[valid], int(valid.sum()), limit or -1, 0.3, force=True, top_k=-1, coord=2, score=1, cls=0
        )[1]
        chosen = list(np.flatnonzero(valid)[places[places >= 0]])
        wanted.append([(b, c, p) for p in (chosen[:limit] if limit else chosen)])
    every = [row for rows in wanted for row in rows]
    m = relay(
        "vision.all_class_non_max_suppression", [boxes, scores], 'output_format="onnx"', tmp_path, constants
    )
    out, total = check_levels(m, [boxes, scores])
    assert out.shape == (48, 3)
    assert total.tolist() == [len(every)]
    np.testing.assert_array_equal(out[: len(every)], every)
    m = relay(
        "vision.all_class_non_max_suppression",
        [boxes, scores],
        'output_format="tensorflow"',
        tmp_path,
        constants,
    )
    out, best, total = check_levels(m, [boxes, scores])
    for b in range(2):
        mine = [row for row in every if row[0] == b]
        assert total[b] == len(mine)
        np.testing.assert_array_equal(out[b, : len(mine)], [row[1:] for row in mine])
        np.testing.assert_allclose(best[b, : len(mine)], [scores[row] for row in mine], atol=1e-6)


def test_regular_non_max_suppression(tmp_path):
    boxes = boxes_of(2, 6)
    scores = (RNG.permuted(np.tile(np.arange(24), (2, 1)), axis=1) / 24).astype(np.float32).reshape(2, 6, 4)
    attrs = "max_detections_per_class=3, max_detections=7, num_classes=3"
    attrs += ", iou_threshold=0.3, score_threshold=0.2"
    m = relay("vision.regular_non_max_suppression", [boxes, scores], attrs, tmp_path)
    corners, classes, best, total = check_levels(m, [boxes, scores])
    for b in range(2):
        found = []
        for c in range(3):
            rows = np.concatenate([np.zeros((6, 1)), scores[b, :, c + 1, None], boxes[b]], -1)
            valid = np.flatnonzero(scores[b, :, c + 1] >= 0.2)
            kept = suppressed(
                rows[valid], len(valid), 3, 0.3 + 1e-6, force=True, top_k=-1, coord=2, score=1, cls=0
            )[1]
            found += [(scores[b, p, c + 1], c, p) for p in valid[kept[kept >= 0]]]
        found = sorted(found, reverse=True)[:7]
        assert total[b] == len(found)
        np.testing.assert_allclose(best[b], [f[0] for f in found] + [0] * (7 - len(found)), atol=1e-6)
        np.testing.assert_array_equal(classes[b], [f[1] for f in found] + [0] * (7 - len(found)))
        np.testing.assert_allclose(corners[b, : len(found)], boxes[b][[f[2] for f in found]], atol=1e-6)


# -- anchors -------------------------------------------------------------------------------------------------
def test_multibox_prior_by_hand(tmp_path):
    x = randoms(1, 1, 2, 4)
    m = relay("vision.multibox_prior", [x], "sizes=[0.5f, 0.2f], ratios=[1f, 4f]", tmp_path)
    (out,) = tw.interpret(m, x)
    assert (out.shape, out.dtype) == ((1, 2 * 4 * 3, 4), np.float32)
    cx, cy = 0.125, 0.25
    np.testing.assert_allclose(out[0, 0], [cx - 0.125, cy - 0.25, cx + 0.125, cy + 0.25], atol=1e-6)
    np.testing.assert_allclose(out[0, 1], [cx - 0.05, cy - 0.1, cx + 0.05, cy + 0.1], atol=1e-6)
    np.testing.assert_allclose(out[0, 2], [cx - 0.25, cy - 0.125, cx + 0.25, cy + 0.125], atol=1e-6)


def test_multibox_transform_loc(tmp_path):
    scores = np.array([[[0.1, 0.9, 0.2, 0.3], [0.8, 0.05, 0.3, 0.3], [0.1, 0.05, 0.5, 0.3]]], np.float32)
    moves, anchors = randoms(1, 16), boxes_of(1, 4) / 10
    m = relay(
        "vision.multibox_transform_loc", [scores, moves, anchors], "threshold=0.2f, clip=False", tmp_path
    )
    out, count = check_levels(m, [scores, moves, anchors])
    assert count.tolist() == [3]
    np.testing.assert_allclose(out[0, :3, :2], [[0, 0.8], [1, 0.5], [0, 0.3]], atol=1e-6)
    for row, k in zip(out[0], (0, 2, 3), strict=False):
        low, high = anchors[0, k, :2], anchors[0, k, 2:]
        move = moves[0, 4 * k : 4 * k + 4] * [0.1, 0.1, 0.2, 0.2]
        centre, half = (low + high) / 2 + move[:2] * (high - low), np.exp(move[2:]) * (high - low) / 2
        np.testing.assert_allclose(row[2:], np.r_[centre - half, centre + half], rtol=1e-4)


def test_proposals_are_repeated(tmp_path):
    # one anchor per element whose predictions keep it: all far apart, so all stay, and start again
    scores = np.concatenate([np.zeros((1, 1, 2, 2)), np.array([[[[0.1, 0.4], [0.3, 0.2]]]])], 1).astype(
        np.float32
    )
    moves, info = np.zeros((1, 4, 2, 2), np.float32), np.array([[200, 200, 1]], np.float32)
    attrs = "scales=[1f], ratios=[1f], feature_stride=100, threshold=0.7, rpn_min_size=16, iou_loss=False"
    attrs += ", rpn_pre_nms_top_n=3, rpn_post_nms_top_n=5"
    m = relay("vision.proposal", [scores, moves, info], attrs, tmp_path)
    (out,) = check_levels(m, [scores, moves, info])
    np.testing.assert_allclose(out[0], [0, 100, 0, 199, 99], atol=1e-4)
    np.testing.assert_allclose(out[3:], out[:2], atol=1e-6)


def test_yolo_reorg(tmp_path):
    x = np.arange(2 * 4 * 4 * 6, dtype=np.float32).reshape(2, 4, 4, 6)
    m = relay("vision.yolo_reorg", [x], "stride=2", tmp_path)
    (out,) = check_levels(m, [x])
    flat = x.reshape(2, -1)
    for k, j, i in np.ndindex(16, 2, 3):
        # Relay's formula over the data's own shape, whose elements are taken in linear order
        place = (k * 2 + j) * 3 + i
        c, y, z = np.unravel_index(place, (4, 4, 6))
        source = (c % 1) * 4 * 24 + (y * 2 + c // 2) * 12 + z * 2 + c % 2
        assert out[0, k, j, i] == flat[0, source]


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        (
            "roi_align",
            [(1, 1, 3, 3), (2, 5)],
            {"pooled_size": (2, 2), "spatial_scale": 1.0, "mode": "sum"},
            "mode",
        ),
        ("box_overlap", [(1, 3, 5)], {}, "boxes"),
        ("compact", [(1, 3, 5), (1, 3)], {}, "bool"),
        ("greedy_keep", [(1, 3), (1, 3, 3)], {}, "bool"),
    ],
)
def test_operands_that_do_not_fit(name, shapes, attrs, message):
    with pytest.raises(InputError, match=message):
        agree(name, *(randoms(*s) for s in shapes), **attrs)
