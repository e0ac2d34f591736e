//apr:include weight_q8_0 wide_nn_runs
