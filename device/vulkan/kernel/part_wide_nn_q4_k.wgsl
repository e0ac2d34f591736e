//apr:include weight_q4_k wide_nn_runs
