"""The form in which TVM's JSON stores attributes: literals with their types, else numbers of other nodes.

The table lists, per attribute class of TVM 0.18 (include/tvm/relay/attrs/*.h), its literal fields by kind.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Class names without `relay.attrs.` and `Attrs`, and the literal fields that all of them have.
_LITERALS = (
    ("AdaptivePool1D AdaptivePool2D AdaptivePool3D GlobalPool2D", "str:layout,out_layout"),
    (
        "AffineGrid BatchToSpaceND CallLowered DFT Debug DeviceCopy Gather GatherND "
        "MetaScheduleLayoutTransform Multinomial Repeat ReshapeTensor Reverse ReverseSequence ShapeFunc "
        "SliceLike SparseToDense SparseTranspose Squeeze Stack ThreefryGenerate Tile Transpose YoloReorg",
        "",
    ),
    ("AllClassNonMaximumSuppression", "str:output_format"),
    ("AllocStorage AllocTensor Arange Cast CastHint InitOp NdarraySize Scanop ShapeOf", "dtype:dtype"),
    ("ArgReduce", "bool:keepdims,select_last_index,exclude"),
    ("Argsort", "bool:is_ascend dtype:dtype int:axis"),
    ("AvgPool1D AvgPool2D AvgPool3D", "bool:ceil_mode,count_include_pad str:layout,out_layout"),
    ("BatchMatmul Matmul", "bool:transpose_a,transpose_b dtype:out_dtype"),
    ("BatchNorm InstanceNorm LayerNorm", "bool:center,scale float:epsilon int:axis"),
    ("BiasAdd Concatenate FIFOBuffer PRelu SimulatedQuantize SlidingWindow Softmax Split", "int:axis"),
    (
        "BinaryConv2D",
        "bool:unipolar dtype:pack_dtype,out_dtype int:activation_bits,weight_bits "
        "str:data_layout,kernel_layout",
    ),
    ("BinaryDense", "bool:unipolar dtype:pack_dtype,out_dtype int:data_bits,weight_bits"),
    ("BitPack", "dtype:pack_type int:bits,pack_axis,bit_axis str:name"),
    ("Broadcast", "int:lhs_axis,rhs_axis"),
    ("Clip", "float:a_min,a_max"),
    ("Compiler", "str:compiler"),
    (
        "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose",
        "dtype:out_dtype int:groups str:data_layout,kernel_layout,out_layout",
    ),
    (
        "Conv2DWinograd Conv3DWinograd",
        "dtype:out_dtype int:tile_size,groups str:data_layout,kernel_layout,out_layout",
    ),
    ("ConvGemmWeightTransform", "int:tile_N,tile_K"),
    ("ConvWinogradWeightTransform", "int:tile_size"),
    ("Correlation", "bool:is_multiply int:kernel_size,max_displacement,stride1,stride2 str:layout"),
    ("CropAndResize", "dtype:out_dtype float:extrapolation_value str:layout,method"),
    (
        "DeformableConv2D",
        "dtype:out_dtype int:deformable_groups,groups str:data_layout,kernel_layout,out_layout",
    ),
    ("Dense Normal Uniform", "dtype:out_dtype"),
    ("DensePack", "dtype:out_dtype str:weight_layout"),
    ("Dequantize Quantize", "dtype:out_dtype int:axis"),
    ("Dilate", "float:dilation_value"),
    ("Dilation2D", "dtype:out_dtype str:data_layout,kernel_layout"),
    ("Dropout", "float:rate"),
    ("DynExpandDims", "int:num_newaxis"),
    ("Einsum", "str:equation"),
    ("ExpandDims", "int:axis,num_newaxis"),
    ("FixedPointMultiply", "int:multiplier,shift"),
    ("FixedPointMultiplyPerAxis", "bool:is_lshift_required,is_rshift_required"),
    ("GetValidCounts", "int:id_index,score_index"),
    ("GridSample", "bool:align_corners str:method,layout,padding_mode"),
    ("GroupNorm", "bool:center,scale float:epsilon int:num_groups,axis"),
    ("L2Normalize", "float:eps"),
    ("LRN", "float:bias,alpha,beta int:size,axis"),
    ("LayoutTransform", "str:src_layout,dst_layout"),
    ("LeakyRelu", "float:alpha"),
    ("MatrixSetDiag", "bool:super_diag_right_align,sub_diag_right_align int:k1,k2"),
    ("MaxPool1D MaxPool2D MaxPool3D", "bool:ceil_mode str:layout,out_layout"),
    ("Meshgrid", "str:indexing"),
    ("MirrorPad ScatterND Take", "str:mode"),
    ("MultiBoxPrior", "bool:clip"),
    ("MultiBoxTransformLoc", "bool:clip,keep_background float:threshold"),
    ("NLLLoss", "int:ignore_index str:reduction"),
    (
        "NonMaximumSuppression",
        "bool:force_suppress,return_indices,invalid_to_bottom int:top_k,coord_start,score_index,id_index",
    ),
    ("OnDevice", "bool:constrain_result,constrain_body"),
    ("OneHot", "dtype:dtype int:depth,axis"),
    ("Pad", "str:pad_mode"),
    (
        "Proposal",
        "bool:iou_loss float:threshold int:feature_stride,rpn_pre_nms_top_n,rpn_post_nms_top_n,rpn_min_size",
    ),
    ("ROIAlign", "float:spatial_scale int:sample_ratio str:layout,mode"),
    ("ROIPool", "float:spatial_scale str:layout"),
    ("Reduce", "bool:keepdims,exclude"),
    (
        "RegularNonMaximumSuppression",
        "float:iou_threshold,score_threshold int:max_detections_per_class,max_detections,num_classes",
    ),
    ("Requantize", "dtype:out_dtype int:axis str:rounding,compute_dtype"),
    ("Reshape", "bool:allowzero"),
    ("ReshapeLike", "int:lhs_begin,rhs_begin"),
    (
        "Resize1D Resize2D Resize3D",
        "dtype:out_dtype float:cubic_alpha,extrapolation_value int:cubic_exclude "
        "str:layout,method,coordinate_transformation_mode,rounding_method",
    ),
    ("ScatterElements", "str:reduction"),
    ("SearchSorted", "bool:right dtype:dtype"),
    ("SequenceMask", "float:mask_value int:axis"),
    ("SpaceToBatchND", "float:pad_value"),
    ("SparseConv2D", "str:layout"),
    ("SparseDense", "bool:sparse_lhs"),
    ("Stft", "bool:normalized,onesided int:n_fft,hop_length,win_length"),
    ("StridedSlice", "str:slice_mode"),
    ("SubPixel", "int:block_size str:layout,mode"),
    ("Topk", "bool:is_ascend dtype:dtype int:axis str:ret_type"),
    ("Trilu", "bool:upper"),
    ("Unique", "bool:sorted,return_counts"),
    ("UpSampling3D", "float:scale_d,scale_h,scale_w str:layout,method,coordinate_transformation_mode"),
    ("UpSampling", "bool:align_corners float:scale_h,scale_w str:layout,method"),
    ("Variance", "bool:keepdims,exclude,unbiased"),
)


def _expand(row: str) -> dict[str, str]:
    groups = (group.partition(":") for group in row.split())
    return {name: kind for kind, _, names in groups for name in names.split(",")}


#: Class name without `relay.attrs.` -> literal field -> `int`, `float`, `bool`, `str` or `dtype`.
LITERAL_FIELDS: Mapping[str, Mapping[str, str]] = {
    f"{name}Attrs": _expand(row) for names, row in _LITERALS for name in names.split()
}
