//apr:include weight_f16 wide_nt_runs
