//apr:include weight_bf16 wide_nt_runs
