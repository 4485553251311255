"""Random small networks of convolutions, maps, pools, slices, reshapes and concatenations along any axis."""

import random
from math import prod

import tilewright as tw

MAX_ELEMENTS = 12_000


class _Drawn:
    def __init__(self, seed, batch):
        self.r = random.Random(seed)
        shape = (batch, self.r.choice([3, 4, 8]), self.r.choice([5, 6, 8]), self.r.choice([5, 6, 8]))
        self.lines, self.params, self.live = [], [("x", shape)], [("%x", shape)]

    def emit(self, text, shape):
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text} : {_type(shape)}")
        self.live.append((name, tuple(shape)))

    def weight(self, shape):
        self.params.append((f"w{len(self.params)}", shape))
        return "%" + self.params[-1][0]

    def conv(self, v, s):
        k, f = self.r.choice([2, 4, 8]), self.r.choice([1, 3])
        pad = f"padding = [{f // 2}, {f // 2}, {f // 2}, {f // 2}]"
        self.emit(f"graph.conv2d({v}, {self.weight((k, s[1], f, f))}, {pad})", (s[0], k, *s[2:]))

    def pool(self, v, s):
        size = "pool_size = [3, 3], strides = [1, 1], padding = [1, 1, 1, 1]"
        self.emit(f"graph.max_pool2d({v}, {size})", s)

    def relu(self, v, s):
        self.emit(f"graph.relu({v})", s)

    def scale(self, v, s):
        self.emit(f"graph.multiply({v}, {self.weight((s[1], 1, 1))})", s)

    def reshape(self, v, s):
        t = self.r.choice([(s[0] * s[1], 1, *s[2:]), (s[0], s[1] * s[2], 1, s[3])])
        self.emit(f"graph.reshape({v}, newshape = {list(t)})", t)

    def slice(self, v, s):
        axis = self.r.randrange(4)
        begin, size = [0] * 4, list(s)
        begin[axis] = self.r.randrange(s[axis])
        size[axis] = self.r.randint(1, s[axis] - begin[axis])
        self.emit(f"graph.strided_slice({v}, begin = {begin}, size = {size}, strides = [1, 1, 1, 1])", size)

    def concatenate(self, v, s):
        axis = self.r.randrange(4)
        fit = [u for u in self.live if all(u[1][d] == s[d] for d in range(4) if d != axis)]
        pieces = [self.r.choice(fit) for _ in range(self.r.randint(2, 4))]
        whole = list(s)
        whole[axis] = sum(t[axis] for _, t in pieces)
        if prod(whole) <= MAX_ELEMENTS:
            self.emit(f"graph.concatenate({', '.join(n for n, _ in pieces)}, axis = {axis})", whole)


def _type(shape):
    return f"f32[{', '.join(map(str, shape))}]"


def random_network(seed, batch):
    """A graph-level module with one or more results; pieces may be inputs, results and in several places."""
    drawn = _Drawn(seed, batch)
    kinds = ("conv", "pool", "relu", "scale", "reshape", "slice", *["concatenate"] * 4)
    for _ in range(drawn.r.randint(6, 13)):
        getattr(drawn, drawn.r.choice(kinds))(*drawn.r.choice(drawn.live))
    results = [drawn.live[-1], *(u for u in drawn.live[1:-1] if drawn.r.random() < 0.2)]
    return network(drawn.params, drawn.lines, results)


def network(params, lines, results):
    """A graph-level module; params and results are (name, shape)."""
    given = ", ".join(f"%{n}: {_type(s)}" for n, s in params)
    body = "\n    ".join([*lines, f"graph.return({', '.join(n for n, _ in results)})"])
    types = ", ".join(_type(s) for _, s in results)
    return tw.parse(f"module @net {{\n  graph.func @main({given}) -> {types} {{\n    {body}\n  }}\n}}\n")


def dense_block(batch, layers, grow=8, side=6):
    """Layers that each read all there is and append to it, as torchvision's DenseNet writes them."""
    params, lines = [("x", (batch, 16, side, side)), ("w", (16, 16, 1, 1))], []
    first = (batch, 16, side, side)
    lines.append(f"%y0 = graph.conv2d(%x, %w) : {_type(first)}")
    pieces, channels = ["%y0"], 16
    for k in range(1, layers + 1):
        whole = (batch, channels, side, side)
        read = f"%c{k}"
        if k == 1:
            read = "%y0"
        else:
            lines.append(f"{read} = graph.concatenate({', '.join(pieces)}, axis = 1) : {_type(whole)}")
        params += [(f"s{k}", (channels, 1, 1)), (f"w{k}", (grow, channels, 3, 3))]
        lines.append(f"%m{k} = graph.multiply({read}, %s{k}) : {_type(whole)}")
        made = _type((batch, grow, side, side))
        lines.append(f"%y{k} = graph.conv2d(%m{k}, %w{k}, padding = [1, 1, 1, 1]) : {made}")
        pieces.append(f"%y{k}")
        channels += grow
    whole = (batch, channels, side, side)
    lines.append(f"%out = graph.concatenate({', '.join(pieces)}, axis = 1) : {_type(whole)}")
    return network(params, lines, [("%out", whole)])
