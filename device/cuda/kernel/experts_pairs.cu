// Products of the few slots of a generation, in bfloat16, with their experts' matrices in blocks: see experts_pairs.cuh.
//apr:module target=sm_80 types=bf16 roles=optional
#include "experts_pairs.cuh"

KERNEL(experts_gated_q4_k, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ4K>>(a); }
KERNEL(experts_mix_q4_k, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ4K>>(a); }
KERNEL(experts_products_q4_k, ExpertPairsArgs, 512, 2) { experts_products<PairOf<RowsQ4K>>(a); }
KERNEL(experts_gated_q5_k, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ5K>>(a); }
KERNEL(experts_mix_q5_k, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ5K>>(a); }
KERNEL(experts_products_q5_k, ExpertPairsArgs, 512, 2) { experts_products<PairOf<RowsQ5K>>(a); }
KERNEL(experts_gated_q6_k, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ6K>>(a); }
KERNEL(experts_mix_q6_k, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ6K>>(a); }
KERNEL(experts_products_q6_k, ExpertPairsArgs, 512, 2) { experts_products<PairOf<RowsQ6K>>(a); }
KERNEL(experts_gated_q8_0, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsOfGroups<GroupQ8_0>>>(a); }
KERNEL(experts_mix_q8_0, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsOfGroups<GroupQ8_0>>>(a); }
KERNEL(experts_products_q8_0, ExpertPairsArgs, 512, 2) { experts_products<PairOf<RowsOfGroups<GroupQ8_0>>>(a); }
KERNEL(experts_gated_mxfp4, ExpertPairsArgs, 512, 2) { experts_gated<PairOfMXFP4>(a); }
KERNEL(experts_mix_mxfp4, ExpertMixedArgs, 512, 2) { experts_mix<PairOfMXFP4>(a); }
KERNEL(experts_products_mxfp4, ExpertPairsArgs, 512, 2) { experts_products<PairOfMXFP4>(a); }
