//apr:include weight_f16 wide_nn_runs
