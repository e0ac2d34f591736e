// The kernels of fp8_sm90.cu, which the emulator leaves out because of its name.
#include "../fp8.cuh"
