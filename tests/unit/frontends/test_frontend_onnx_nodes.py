"""Node tests of the ONNX standard: a sample of every family on the reference, a few compiled for OpenCL."""

import pytest

from tilewright.frontends.onnx.package import onnx_module
from tilewright.tools.conformance.case import PASSED, UNSUPPORTED, run_case
from tilewright.tools.conformance.suites import imported, onnx_suite

#: names that begin so; every family of rules occurs
_SAMPLE = """
    add_bcast cast_FLOAT_to_FLOAT16 clip_default_inbounds mod_mixed_sign_int64 pow_types_float32_int64
    prelu_broadcast attention_4d_gqa_causal attention_3d_with_past_and_present celu gelu_tanh_1 hardswish
    rms_normalization_3d_axis1 averagepool_2d_ceil_last_window_starts_on_pad
    averagepool_3d_dilations_large basic_conv_with_padding convtranspose_autopad_same
    convtranspose_output_shape convinteger_with_padding deform_conv_with_mask_bias lppool_2d_dilations
    maxpool_2d_ceil_output_size_reduce_by_one maxpool_with_argmax_2d_precomputed_strides
    maxunpool_export_with_output_shape batchnorm_epsilon_training_mode group_normalization_epsilon
    layer_normalization_3d_axis_negative_2_epsilon mvn lrn_default l2normalization_axis_0 qlinearconv
    qlinearmatmul_2D_int8_float32 quantizelinear_blocked_asymmetric dequantizelinear_axis
    dynamicquantizelinear_max_adjusted gather_elements_negative_indices gathernd_example_int32_batch_dim1
    scatternd_multiply scatter_elements_with_duplicate_indices scatter_with_axis onehot_negative_indices
    top_k_smallest compress_1 cumsum_1d_reverse_exclusive reversesequence_batch tensorscatter_circular
    tril_neg reduce_log_sum_exp_empty_set argmax_negative_axis_keepdims_random_select_last_index
    hardmax_axis_1 reduce_l2_default_axes_keepdims_example logsoftmax_large_number
    reshape_zero_and_negative_dim slice_neg_steps split_variable_parts_2d_opset18
    constant_pad_negative_axes wrap_pad center_crop_pad_crop_axes_hwc range_float_type_positive_delta
    eyelike_populate_off_main_diagonal depthtospace_crd_mode_example gru_batchwise lstm_with_peepholes
    rnn_seq_length scan9_sum scan_sum loop11 if range_int32_type_negative_delta
    resize_downsample_scales_cubic_antialias resize_tf_crop_and_resize_axes_3_2
    resize_upsample_sizes_nearest_not_larger upsample_nearest gridsample_bicubic_align_corners_1
    gridsample_volumetric_bilinear roialign_mode_max col2im_pads affine_grid_3d_align_corners dft_irfft
    stft_with_window det_nd einsum_batch_diagonal melweightmatrix tfidfvectorizer_tf
    blackmanwindow nllloss_NCd1d2
    sce_mean_3d sequence_insert_at_front split_to_sequence_1 optional_has_element_empty_optional_input
"""
SAMPLE = tuple(_SAMPLE.split())
COMPILED = ("basic_conv_with_padding", "scatternd_multiply")
#: what has no static type comes back with its reason
DECLINED = {"sequence_insert_at_front", "optional_has_element_empty_optional_input"}


@pytest.fixture(scope="module")
def suite():
    return onnx_suite()


@pytest.mark.parametrize("start", SAMPLE)
def test_node_cases_pass_on_the_reference(start, suite):
    chosen = [n for n in suite.cases if n.startswith(f"test_{start}") and not n.endswith("_expanded")][:3]
    assert chosen, f"no case is called test_{start}"
    results = [run_case(suite, n, "reference") for n in chosen]
    wanted = UNSUPPORTED if start in DECLINED else PASSED
    assert [r for r in results if r.status != wanted] == []


def test_inputs_that_shapes_depend_on_are_bound():
    (case,) = [c for c in onnx_module("backend.test.loader").load_model_tests(kind="node")
               if c.name == "test_tile_precomputed"]  # fmt: skip
    x, y = case.data_sets[0][0]
    module, bound = imported(case.model, {"x": x, "y": y})
    assert bound == ("y",)
    assert module.input_names == ("x",)


@pytest.mark.parametrize("name", COMPILED)
def test_node_cases_pass_compiled(name, suite):
    result = run_case(suite, f"test_{name}", "opencl")
    assert result.status == PASSED, result.reason
