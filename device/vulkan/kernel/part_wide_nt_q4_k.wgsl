//apr:include weight_q4_k wide_nt_runs
