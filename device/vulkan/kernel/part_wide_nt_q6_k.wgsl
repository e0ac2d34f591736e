//apr:include weight_q6_k wide_nt_runs
