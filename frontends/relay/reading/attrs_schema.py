"""How TVM's JSON stores each attribute: as a literal (and of which type), else as the number of another node.

The table lists, per attribute class of TVM 0.18 (include/tvm/relay/attrs/*.h), its literal fields by kind.
"""

from __future__ import annotations

from collections.abc import Mapping

_LITERALS = {
    "AdaptivePool1DAttrs": "str:layout,out_layout",
    "AdaptivePool2DAttrs": "str:layout,out_layout",
    "AdaptivePool3DAttrs": "str:layout,out_layout",
    "AffineGridAttrs": "",
    "AllClassNonMaximumSuppressionAttrs": "str:output_format",
    "AllocStorageAttrs": "dtype:dtype",
    "AllocTensorAttrs": "dtype:dtype",
    "ArangeAttrs": "dtype:dtype",
    "ArgReduceAttrs": "bool:keepdims,select_last_index,exclude",
    "ArgsortAttrs": "bool:is_ascend dtype:dtype int:axis",
    "AvgPool1DAttrs": "bool:ceil_mode,count_include_pad str:layout,out_layout",
    "AvgPool2DAttrs": "bool:ceil_mode,count_include_pad str:layout,out_layout",
    "AvgPool3DAttrs": "bool:ceil_mode,count_include_pad str:layout,out_layout",
    "BatchMatmulAttrs": "bool:transpose_a,transpose_b dtype:out_dtype",
    "BatchNormAttrs": "bool:center,scale float:epsilon int:axis",
    "BatchToSpaceNDAttrs": "",
    "BiasAddAttrs": "int:axis",
    "BinaryConv2DAttrs": (
        "bool:unipolar dtype:pack_dtype,out_dtype int:activation_bits,weight_bits "
        "str:data_layout,kernel_layout"
    ),
    "BinaryDenseAttrs": "bool:unipolar dtype:pack_dtype,out_dtype int:data_bits,weight_bits",
    "BitPackAttrs": "dtype:pack_type int:bits,pack_axis,bit_axis str:name",
    "BroadcastAttrs": "int:lhs_axis,rhs_axis",
    "CallLoweredAttrs": "",
    "CastAttrs": "dtype:dtype",
    "CastHintAttrs": "dtype:dtype",
    "ClipAttrs": "float:a_min,a_max",
    "CompilerAttrs": "str:compiler",
    "ConcatenateAttrs": "int:axis",
    "Conv1DAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv1DTransposeAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv2DAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv2DTransposeAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv2DWinogradAttrs": "dtype:out_dtype int:tile_size,groups str:data_layout,kernel_layout,out_layout",
    "Conv3DAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv3DTransposeAttrs": "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    "Conv3DWinogradAttrs": "dtype:out_dtype int:tile_size,groups str:data_layout,kernel_layout,out_layout",
    "ConvGemmWeightTransformAttrs": "int:tile_N,tile_K",
    "ConvWinogradWeightTransformAttrs": "int:tile_size",
    "CorrelationAttrs": "bool:is_multiply int:kernel_size,max_displacement,stride1,stride2 str:layout",
    "CropAndResizeAttrs": "dtype:out_dtype float:extrapolation_value str:layout,method",
    "DFTAttrs": "",
    "DebugAttrs": "",
    "DeformableConv2DAttrs": (
        "dtype:out_dtype int:deformable_groups,groups str:data_layout,kernel_layout,out_layout"
    ),
    "DenseAttrs": "dtype:out_dtype",
    "DensePackAttrs": "dtype:out_dtype str:weight_layout",
    "DequantizeAttrs": "dtype:out_dtype int:axis",
    "DeviceCopyAttrs": "",
    "DilateAttrs": "float:dilation_value",
    "Dilation2DAttrs": "dtype:out_dtype str:data_layout,kernel_layout",
    "DropoutAttrs": "float:rate",
    "DynExpandDimsAttrs": "int:num_newaxis",
    "EinsumAttrs": "str:equation",
    "ExpandDimsAttrs": "int:axis,num_newaxis",
    "FIFOBufferAttrs": "int:axis",
    "FixedPointMultiplyAttrs": "int:multiplier,shift",
    "FixedPointMultiplyPerAxisAttrs": "bool:is_lshift_required,is_rshift_required",
    "GatherAttrs": "",
    "GatherNDAttrs": "",
    "GetValidCountsAttrs": "int:id_index,score_index",
    "GlobalPool2DAttrs": "str:layout,out_layout",
    "GridSampleAttrs": "bool:align_corners str:method,layout,padding_mode",
    "GroupNormAttrs": "bool:center,scale float:epsilon int:num_groups,axis",
    "InitOpAttrs": "dtype:dtype",
    "InstanceNormAttrs": "bool:center,scale float:epsilon int:axis",
    "L2NormalizeAttrs": "float:eps",
    "LRNAttrs": "float:bias,alpha,beta int:size,axis",
    "LayerNormAttrs": "bool:center,scale float:epsilon int:axis",
    "LayoutTransformAttrs": "str:src_layout,dst_layout",
    "LeakyReluAttrs": "float:alpha",
    "MatmulAttrs": "bool:transpose_a,transpose_b dtype:out_dtype",
    "MatrixSetDiagAttrs": "bool:super_diag_right_align,sub_diag_right_align int:k1,k2",
    "MaxPool1DAttrs": "bool:ceil_mode str:layout,out_layout",
    "MaxPool2DAttrs": "bool:ceil_mode str:layout,out_layout",
    "MaxPool3DAttrs": "bool:ceil_mode str:layout,out_layout",
    "MeshgridAttrs": "str:indexing",
    "MetaScheduleLayoutTransformAttrs": "",
    "MirrorPadAttrs": "str:mode",
    "MultiBoxPriorAttrs": "bool:clip",
    "MultiBoxTransformLocAttrs": "bool:clip,keep_background float:threshold",
    "MultinomialAttrs": "",
    "NLLLossAttrs": "int:ignore_index str:reduction",
    "NdarraySizeAttrs": "dtype:dtype",
    "NonMaximumSuppressionAttrs": (
        "bool:force_suppress,return_indices,invalid_to_bottom int:top_k,coord_start,score_index,id_index"
    ),
    "NormalAttrs": "dtype:out_dtype",
    "OnDeviceAttrs": "bool:constrain_result,constrain_body",
    "OneHotAttrs": "dtype:dtype int:depth,axis",
    "PReluAttrs": "int:axis",
    "PadAttrs": "str:pad_mode",
    "ProposalAttrs": (
        "bool:iou_loss float:threshold int:feature_stride,rpn_pre_nms_top_n,rpn_post_nms_top_n,rpn_min_size"
    ),
    "QuantizeAttrs": "dtype:out_dtype int:axis",
    "ROIAlignAttrs": "float:spatial_scale int:sample_ratio str:layout,mode",
    "ROIPoolAttrs": "float:spatial_scale str:layout",
    "ReduceAttrs": "bool:keepdims,exclude",
    "RegularNonMaximumSuppressionAttrs": (
        "float:iou_threshold,score_threshold int:max_detections_per_class,max_detections,num_classes"
    ),
    "RepeatAttrs": "",
    "RequantizeAttrs": "dtype:out_dtype int:axis str:rounding,compute_dtype",
    "ReshapeAttrs": "bool:allowzero",
    "ReshapeLikeAttrs": "int:lhs_begin,rhs_begin",
    "ReshapeTensorAttrs": "",
    "Resize1DAttrs": (
        "dtype:out_dtype float:cubic_alpha,extrapolation_value int:cubic_exclude "
        "str:layout,method,coordinate_transformation_mode,rounding_method"
    ),
    "Resize2DAttrs": (
        "dtype:out_dtype float:cubic_alpha,extrapolation_value int:cubic_exclude "
        "str:layout,method,coordinate_transformation_mode,rounding_method"
    ),
    "Resize3DAttrs": (
        "dtype:out_dtype float:cubic_alpha,extrapolation_value int:cubic_exclude "
        "str:layout,method,coordinate_transformation_mode,rounding_method"
    ),
    "ReverseAttrs": "",
    "ReverseSequenceAttrs": "",
    "ScanopAttrs": "dtype:dtype",
    "ScatterElementsAttrs": "str:reduction",
    "ScatterNDAttrs": "str:mode",
    "SearchSortedAttrs": "bool:right dtype:dtype",
    "SequenceMaskAttrs": "float:mask_value int:axis",
    "ShapeFuncAttrs": "",
    "ShapeOfAttrs": "dtype:dtype",
    "SimulatedQuantizeAttrs": "int:axis",
    "SliceLikeAttrs": "",
    "SlidingWindowAttrs": "int:axis",
    "SoftmaxAttrs": "int:axis",
    "SpaceToBatchNDAttrs": "float:pad_value",
    "SparseConv2DAttrs": "str:layout",
    "SparseDenseAttrs": "bool:sparse_lhs",
    "SparseToDenseAttrs": "",
    "SparseTransposeAttrs": "",
    "SplitAttrs": "int:axis",
    "SqueezeAttrs": "",
    "StackAttrs": "",
    "StftAttrs": "bool:normalized,onesided int:n_fft,hop_length,win_length",
    "StridedSliceAttrs": "str:slice_mode",
    "SubPixelAttrs": "int:block_size str:layout,mode",
    "TakeAttrs": "str:mode",
    "ThreefryGenerateAttrs": "",
    "TileAttrs": "",
    "TopkAttrs": "bool:is_ascend dtype:dtype int:axis str:ret_type",
    "TransposeAttrs": "",
    "TriluAttrs": "bool:upper",
    "UniformAttrs": "dtype:out_dtype",
    "UniqueAttrs": "bool:sorted,return_counts",
    "UpSampling3DAttrs": "float:scale_d,scale_h,scale_w str:layout,method,coordinate_transformation_mode",
    "UpSamplingAttrs": "bool:align_corners float:scale_h,scale_w str:layout,method",
    "VarianceAttrs": "bool:keepdims,exclude,unbiased",
    "YoloReorgAttrs": "",
}


def _expand(row: str) -> dict[str, str]:
    groups = (group.partition(":") for group in row.split())
    return {name: kind for kind, _, names in groups for name in names.split(",")}


#: Class name without `relay.attrs.` -> literal field -> `int`, `float`, `bool`, `str` or `dtype`.
LITERAL_FIELDS: Mapping[str, Mapping[str, str]] = {name: _expand(row) for name, row in _LITERALS.items()}
