"""Realistic inputs for trained networks: printed text, a voice, the bytes of a file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np

_LINES = ("Tilewright 2026", "The quick brown fox", "jumps over 13 dogs", "Invoice no. 4711", "Total: 98.60")


def text(height: int, width: int, number: int = 0) -> np.ndarray:
    """Printed lines on paper, f32[height, width, 3] in [0, 1]; another number begins with another line."""
    drawing, fonts = import_module("PIL.ImageDraw"), import_module("PIL.ImageFont")
    paper = import_module("PIL.Image").new("RGB", (width, height), (238, 236, 230))
    size = min(32, height * 2 // 3)
    pen, font = drawing.Draw(paper), fonts.load_default(size=size)
    for row in range(max(1, height // (2 * size))):
        line = _LINES[(row + number) % len(_LINES)]
        pen.text(
            (8, (height - size) // 2 if height < 3 * size else row * 2 * size + 8), line, (28, 30, 40), font
        )
    shade = np.linspace(1.0, 0.92, width, dtype=np.float32)[:, None]
    return np.asarray(paper, np.float32) / np.float32(255) * shade


def planes(picture: np.ndarray, mean: float = 0.5, deviation: float = 0.5) -> np.ndarray:
    """A picture [height, width, channels] as [channels, height, width], shifted and scaled."""
    return np.ascontiguousarray(((picture - mean) / deviation).transpose(2, 0, 1), np.float32)


def voice(samples: int, rate: int = 16000, number: int = 0) -> np.ndarray:
    """Voiced syllables with pauses and some noise, f32[samples] within 0.6; the number is the seed."""
    rng = np.random.default_rng(number)
    t = np.arange(samples) / rate
    pitch = 110 + 15 * number + 25 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formant = 600 + 250 * np.sin(2 * np.pi * 1.3 * t)
    harmonics = (np.sin(k * phase) * np.exp(-(((k * pitch - formant) / 500) ** 2)) for k in range(1, 25))
    syllables = np.clip(np.sin(2 * np.pi * 3 * t), 0, 1) ** 0.5 * (np.sin(2 * np.pi * 0.4 * t + 1) > -0.3)
    sound = np.sum(list(harmonics), axis=0) * syllables + 0.01 * rng.standard_normal(samples)
    return np.asarray(0.6 * sound / np.abs(sound).max(), np.float32)


def log_power(frames: int, bins: int, step: int = 160, number: int = 0) -> np.ndarray:
    """The logarithm of the power of a voice, f32[frames, bins], one frame every `step` samples."""
    length = 2 * bins
    sound = voice(frames * step + length, number=number)
    cut = np.stack([sound[i * step : i * step + length] for i in range(frames)])
    power = np.abs(np.fft.rfft(cut * np.hanning(length)))[:, :bins] ** 2
    return np.log10(power + 1e-12).astype(np.float32)


def file_bytes(number: int = 0, ends: int = 1024) -> np.ndarray:
    """First and last bytes of a source file of this package, i32[2 * ends]; 256 where it is shorter."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    content = np.frombuffer(files[number % len(files)].read_bytes(), np.uint8).astype(np.int32)
    head, tail = content[:ends], content[-ends:]
    empty = np.full(ends, 256, np.int32)
    empty[: len(head)] = head
    filled = np.full(ends, 256, np.int32)
    filled[ends - len(tail) :] = tail
    return np.concatenate([empty, filled])
