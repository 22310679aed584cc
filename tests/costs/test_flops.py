"""FLOPs of TensorFlow's operations, by hand."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from traced import graph_of, looped, only  # noqa: E402

from checkmate_tf.costs.calls import iterations_of  # noqa: E402
from checkmate_tf.costs.counts import TRANSCENDENTAL  # noqa: E402
from checkmate_tf.costs.flops import op_flops  # noqa: E402
from checkmate_tf.costs.roofline import op_traffic_bytes  # noqa: E402
from checkmate_tf.costs.sizes import num_bytes, output_elements  # noqa: E402


def test_convolutions_count_two_for_each_multiply_add():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, strides=2, padding="SAME")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (2, 8, 8, 3), (3, 3, 3, 16))
    flops = 2 * (2 * 4 * 4 * 16) * (3 * 3 * 3)
    assert op_flops(only(graph, "Conv2D")) == flops
    assert op_flops(only(graph, "Conv2DBackpropInput")) == flops
    assert op_flops(only(graph, "Conv2DBackpropFilter")) == flops


def test_grouped_convolution_counts_the_channels_of_a_group():
    graph = graph_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (1, 4, 4, 8), (3, 3, 2, 16))
    assert op_flops(only(graph, "Conv2D")) == 2 * (4 * 4 * 16) * (3 * 3 * 2)


def test_depthwise_convolutions():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.depthwise_conv2d(x, w, (1, 1, 1, 1), "SAME")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (2, 8, 8, 4), (3, 3, 4, 2))
    flops = 2 * (2 * 8 * 8 * 4 * 2) * 9
    for kind in ("", "BackpropInput", "BackpropFilter"):
        assert op_flops(only(graph, "DepthwiseConv2dNative" + kind)) == flops


def test_conv3d():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv3d(x, w, (1, 1, 1, 1, 1), "VALID")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (1, 4, 4, 4, 2), (2, 2, 2, 2, 5))
    flops = 2 * (3**3 * 5) * (2**3 * 2)
    for kind in ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"):
        assert op_flops(only(graph, kind)) == flops


def test_matrix_products():
    graph = graph_of(lambda a, b: tf.matmul(a, b, transpose_a=True), (7, 3), (7, 5))
    assert op_flops(only(graph, "MatMul")) == 2 * 3 * 5 * 7
    graph = graph_of(lambda a, b: tf.matmul(a, b, transpose_b=True), (2, 4, 3, 7), (2, 4, 5, 7))
    assert op_flops(only(graph, "BatchMatMulV2")) == 2 * (2 * 4) * 3 * 5 * 7


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ab,bc->ac", [(2, 3), (3, 5)], 2 * 2 * 3 * 5),
        ("BTNH,BSNH->BNTS", [(2, 6, 4, 8), (2, 7, 4, 8)], 2 * 2 * 6 * 7 * 4 * 8),
        ("...ij,jk->...ik", [(9, 2, 3), (3, 4)], 2 * 9 * 2 * 3 * 4),
        ("ij->j", [(4, 5)], 20),
    ],
)
def test_einsum(equation, shapes, flops):
    graph = graph_of(lambda *t: tf.raw_ops.Einsum(inputs=t, equation=equation), *shapes)
    assert op_flops(only(graph, "Einsum")) == flops


def test_batch_normalisation():
    def forward_and_back(x, s):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.compat.v1.nn.fused_batch_norm(x, s, s, is_training=True)[0]
        return tape.gradient(y, x)

    graph = graph_of(forward_and_back, (2, 4, 4, 8), (8,))
    assert op_flops(only(graph, "FusedBatchNormV3")) == 6 * 256
    assert op_flops(only(graph, "FusedBatchNormGradV3")) == 9 * 256


def test_pooling():
    def forward_and_back(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(x, 3, 2, "SAME"), tf.nn.avg_pool2d(x, 2, 2, "SAME")
        return tape.gradient(y, x)

    graph = graph_of(forward_and_back, (1, 8, 8, 2))
    assert op_flops(only(graph, "MaxPool")) == op_flops(only(graph, "MaxPoolGrad")) == 9 * (4 * 4 * 2)
    assert op_flops(only(graph, "AvgPool")) == op_flops(only(graph, "AvgPoolGrad")) == 4 * (4 * 4 * 2)


@pytest.mark.parametrize(
    ("function", "kind", "flops"),
    [
        (lambda x: x + x, "AddV2", 12),
        (tf.math.squared_difference, "SquaredDifference", 24),
        (tf.exp, "Exp", 12 * TRANSCENDENTAL),
        (tf.tanh, "Tanh", 12 * TRANSCENDENTAL),
        (tf.nn.softmax, "Softmax", 12 * (TRANSCENDENTAL + 4)),
        (lambda x: tf.reduce_sum(x, 0), "Sum", 12),
        (lambda x: tf.reduce_mean(x, 0), "Mean", 12 + 4),
        (lambda x: tf.add_n([x, x, x]), "AddN", 24),
        (tf.transpose, "Transpose", 12),
        (lambda x: tf.gather(x, [0, 1, 0, 2]), "GatherV2", 16),
        (lambda x: tf.raw_ops.Identity(input=x), None, 0),
        (lambda x: tf.reshape(x, (4, 3)), "Reshape", 0),
        (lambda x: tf.random.stateless_uniform((5, 2), (1, 2)), "StatelessRandomUniformV2", 100),
        (lambda x: tf.raw_ops.MatrixBandPart(input=x, num_lower=0, num_upper=0), "MatrixBandPart", 12),  # unknown here
    ],
)
def test_elementwise_reductions_views_and_unknown(function, kind, flops):
    specs = [(3, 4)] * (2 if kind == "SquaredDifference" else 1)
    graph = graph_of(function, *specs)
    ops = [op for op in graph.get_operations() if op.type == kind] or [graph.get_operations()[1]]
    assert op_flops(ops[0]) == flops


@pytest.mark.parametrize(
    ("transform", "kind", "flops"),
    [
        (tf.signal.fft, "FFT", 5 * 512 * 3),
        (tf.signal.ifft2d, "IFFT2D", 5 * 512 * 6),
        (tf.signal.fft3d, "FFT3D", 5 * 512 * 9),
        (lambda x: tf.signal.rfft(tf.math.real(x)), "RFFT", 2.5 * 512 * 3),
        (lambda x: tf.signal.irfft3d(x, [8, 8, 8]), "IRFFT3D", 2.5 * 512 * 9),
    ],
)
def test_fourier_transforms_count_the_axes_that_they_transform(transform, kind, flops):
    graph = graph_of(transform, tf.TensorSpec((8, 8, 8), tf.complex64))
    assert op_flops(only(graph, kind)) == flops


@pytest.mark.parametrize(
    ("function", "kind", "flops"),
    [
        (tf.linalg.cholesky, "Cholesky", 6**3 / 3),
        (tf.linalg.lu, "Lu", 2 * 6**3 / 3),
        (tf.linalg.det, "MatrixDeterminant", 2 * 6**3 / 3),
        (tf.linalg.inv, "MatrixInverse", 2 * 6**3),
        (lambda x: tf.linalg.solve(x, x[..., :2]), "MatrixSolve", 2 * 6**3 / 3 + 2 * 6**2 * 2),
        (lambda x: tf.linalg.triangular_solve(x, x[..., :2]), "MatrixTriangularSolve", 6**2 * 2),
        (tf.linalg.eigvalsh, "SelfAdjointEigV2", 4 * 6**3 / 3),
        (tf.linalg.eigh, "SelfAdjointEigV2", 9 * 6**3),
        (tf.linalg.eig, "Eig", 25 * 6**3),
        (lambda x: tf.linalg.qr(x[..., :3]), "Qr", 4 * 3**2 * (6 - 1)),
        (lambda x: tf.linalg.qr(x[..., :2, :], full_matrices=True), "Qr", 2 * 2**2 * (6 - 2 / 3) + 4 / 3 * 2**3),
        (lambda x: tf.linalg.qr(x, full_matrices=True), "Qr", 4 / 3 * 6**3 + 4 / 3 * 6**3),
        (lambda x: tf.linalg.svd(x[..., :3, :], compute_uv=False), "Svd", 4 * 6 * 3**2 - 4 * 3**3 / 3),
        (lambda x: tf.linalg.svd(x[..., :3]), "Svd", 14 * 6 * 3**2 + 8 * 3**3),
        (lambda x: tf.linalg.svd(x, full_matrices=True), "Svd", 21 * 6**3),
    ],
)
def test_linear_algebra_counts_cubes(function, kind, flops):
    graph = graph_of(function, (5, 6, 6))
    assert op_flops(only(graph, kind)) == pytest.approx(5 * flops)


def test_updates_of_optimizers_read_and_write_their_slots():
    value, first, second = (tf.Variable(tf.zeros((100, 100))) for _ in range(3))
    rates = dict.fromkeys(("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon"), 0.1)

    def step(x):
        tf.raw_ops.ResourceApplyAdam(var=value.handle, m=first.handle, v=second.handle, grad=x, **rates)
        tf.raw_ops.ResourceApplyGradientDescent(var=value.handle, alpha=0.1, delta=x)

    graph = graph_of(step, (100, 100))
    assert op_traffic_bytes(only(graph, "ResourceApplyAdam")) == 7 * 4e4 + 6 * 4
    assert op_traffic_bytes(only(graph, "ResourceApplyGradientDescent")) == 3 * 4e4 + 4


def test_updates_of_variables_count_the_value():
    variable = tf.Variable(tf.zeros((6, 5)))
    graph = graph_of(lambda x: variable.assign_add(x), (6, 5))
    assert op_flops(only(graph, "AssignAddVariableOp")) == 30
    assert op_traffic_bytes(only(graph, "AssignAddVariableOp")) == 3 * 30 * 4


def test_a_loop_costs_its_body_times_its_bound():
    loop = only(graph_of(looped, (4, 8), (8, 8)), "StatelessWhile")
    assert iterations_of(loop) == 7
    assert op_flops(loop) >= 7 * 2 * 4 * 8 * 8
    assert op_flops(loop) < 7 * (2 * 4 * 8 * 8 + 100)


def test_an_open_batch_in_a_body_is_read_from_the_inputs_of_the_loop():
    def open_loop(x, w):
        h = tf.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, tf.matmul(h, w)),
            (0, x),
            shape_invariants=(tf.TensorShape(()), tf.TensorShape((None, 8))),
        )
        return h[1]

    loop = only(graph_of(open_loop, (64, 8), (8, 8)), "StatelessWhile")
    products = 3 * 2 * 64 * 8 * 8
    assert products <= op_flops(loop) < 1.1 * products


def test_a_gradient_loop_takes_the_count_of_its_forward_loop():
    def back(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = looped(x, w, 100)
        return tape.gradient(y, w)

    loops = [op for op in graph_of(back, (4, 8), (8, 8)).get_operations() if "While" in op.type]
    assert [iterations_of(op) for op in loops] == [9, 9]


def test_a_loop_without_a_constant_bound_counts_once():
    def until(x, n):
        return tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, tf.matmul(h, h)), (0, x))[1]

    loop = only(graph_of(until, (8, 8), tf.TensorSpec((), tf.int32)), "StatelessWhile")
    assert iterations_of(loop) is None
    assert 2 * 8**3 <= op_flops(loop) < 2 * 8**3 + 100


def test_an_unknown_size_is_not_zero():
    graph = graph_of(lambda x, n: tf.tile(x, n), (8, 8), tf.TensorSpec((2,), tf.int32))
    tile = only(graph, "Tile")
    assert tile.outputs[0].shape.as_list() == [None, None]
    assert output_elements(tile.outputs[0]) == op_flops(tile) == 64
    assert num_bytes(tile.outputs[0]) == 256
