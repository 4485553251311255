"""A translator with attention (Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly ...")."""

from __future__ import annotations

from tilewright.frontends.zoo.gated import both_ways, cuts, gated_unit
from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module


def attention_rnn(
    seed: int = 0,
    *,
    width: int = 512,
    vocabulary: int = 10_000,
    source: int = 32,
    target: int = 32,
    batch: int = 1,
    name: str = "attention_rnn",
) -> Module:
    """Map `words` int32 [batch, source] and `before` int32 [batch, target] to logits of the next words.

    `before` are the words of the translation that stand before each place. Gated recurrent units of `width`
    read the words in both directions; at every step of the translation a softmax over
    v . tanh(W state + U word) weighs what was read, and a gated unit of `width` takes the sum and the
    embedded word before (the paper's appendix A). The logits are [target * batch, vocabulary], one place
    after another, of the state, the sum and the embedded word. The paper has 1,000 units, 30,000 words and
    sentences of up to 50. Train it with `cross_entropy`. Raises InputError for impossible sizes.
    """
    sizes = {"width": width, "vocabulary": vocabulary, "source": source, "target": target}
    check_sizes(name, **sizes, batch=batch)
    net = NetworkWriter(seed)
    words = net.input("words", "i32", batch, source)
    before = net.input("before", "i32", batch, target)
    with net.scope("encoder"):
        read = _embedded(net, words, vocabulary, width)
        forward, backward = both_ways(net, read, width)
        stacked = (net.w.op("stack", *states, axis=1) for states in (forward, backward))
        memory = net.w.op("concatenate", *stacked, axis=2)  # [batch, source, 2 width]
    with net.scope("decoder"):
        written = _embedded(net, before, vocabulary, width)
        states, sums = _translated(net, memory, written, backward[0])
    with net.scope("head"):
        joint = net.w.op("concatenate", states, sums, written.reshape(target * batch, width), axis=1)
        bent = net.linear(joint, width, "hidden").tanh()
        return net.module(name, [net.linear(bent, vocabulary, "logits")])


def _embedded(net: NetworkWriter, words: Tensor, vocabulary: int, width: int) -> Tensor:
    """The words' vectors, step by step: [steps, batch, width]."""
    table = net.weight("words", vocabulary, width)
    return net.w.op("take", table, words.transpose(1, 0), axis=0)


def _translated(net: NetworkWriter, memory: Tensor, written: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """States and weighted sums of all steps, each [steps * batch, ...].

    The parts of products that do not depend on the state are computed for all steps at once.
    """
    batch, source, twice = memory.shape
    steps, _, width = written.shape
    with net.scope("attention"):
        flat = memory.reshape(batch * source, twice)
        keys = net.linear(flat, width, "memory").reshape(batch, source, width)
        factor = net.weight("score", width)
    joint = net.linear(written.reshape(steps * batch, width), 3 * width, "input")
    parts = net.w.ops_of("split", [joint], indices=cuts(steps, batch), axis=0)
    state = net.linear(last, width, "start").tanh()
    states: list[Tensor] = []
    sums: list[Tensor] = []
    for part in parts:
        with net.scope("attention"):
            query = net.w.op("dense", state, net.weight("state.kernel", width, width))
            bent = (keys + query.reshape(batch, 1, width)).tanh()
            scores = net.w.op("softmax", (bent * factor).sum(2), axis=-1)
        mixed = scores.reshape(batch, 1, source).matmul(memory).reshape(batch, twice)
        gates = part + net.w.op("dense", mixed, net.weight("sum.kernel", 3 * width, twice))
        state = gated_unit(net, gates, state)
        states.append(state)
        sums.append(mixed)
    return net.w.op("concatenate", *states, axis=0), net.w.op("concatenate", *sums, axis=0)
