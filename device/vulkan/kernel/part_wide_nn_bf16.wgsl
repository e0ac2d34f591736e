//apr:include weight_bf16 wide_nn_runs
