//apr:include weight_q6_k wide_nn_runs
