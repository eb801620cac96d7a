// SGLang's kda_fused_decode as a plain C function: convolution, gates, one token of KDA and the gated norm in one launch.
//
// Built by `python -m perf_gates.gpu.today.build` from an unpacked wheel, for H local heads. Nothing of SGLang is in this
// file; the kernel is chosen and launched as by its own binding, with programmatic dependent launch as on sm_90.

#include <attention/kda_fused_decode.cuh>

#include <cstdio>

struct Arguments {
  int batch;
  int bounded;  // whether the log decay has a lower bound
  float bound, scale, eps;
  void *qkv, *a, *b, *windows, *w_q, *w_k, *w_v, *bias, *A_log, *dt_bias, *gate, *weight, *state, *index, *out;
};

// Returns 0, or the CUDA error with its name in `said`.
extern "C" __attribute__((visibility("default"))) int sglang_kda(Arguments const* a, void* stream, char* said, int room) {
  using bf16 = __nv_bfloat16;
  constexpr int64_t part = PEER_H * 128;
  int const stages = a->batch * PEER_H >= 512 ? 3 : 4;
  size_t const shared = size_t(stages) * sglang::kChunkV * sglang::kDimK * sizeof(float);
  auto const kernel = sglang::select_kda_fused_decode_k3_kernel<PEER_H, true>(a->bounded, stages);
  auto code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  if (code == cudaSuccess) {
    cudaLaunchAttribute overlap[1];
    overlap[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(a->batch, PEER_H);
    config.blockDim = dim3(sglang::kThreads);
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = overlap;
    config.numAttrs = 1;
    auto const* x = static_cast<bf16 const*>(a->qkv);
    auto* windows = static_cast<bf16*>(a->windows);
    auto const* bias = static_cast<float const*>(a->bias);
    code = cudaLaunchKernelEx(
        &config, kernel, x, x + part, x + 2 * part, static_cast<float const*>(a->w_q), static_cast<float const*>(a->w_k),
        static_cast<float const*>(a->w_v), bias, bias + part, bias + 2 * part, windows, windows + part, windows + 2 * part,
        static_cast<float const*>(a->A_log), static_cast<bf16 const*>(a->a), static_cast<float const*>(a->dt_bias),
        static_cast<bf16 const*>(a->b), static_cast<bf16 const*>(a->gate), static_cast<float const*>(a->weight),
        static_cast<int32_t const*>(a->index), static_cast<int32_t const*>(nullptr), static_cast<float*>(a->state),
        static_cast<bf16*>(a->out), a->batch, PEER_H, PEER_H, a->bound, a->scale, a->eps, 3 * part, part, int64_t(PEER_H), part,
        9 * part, 3 * part, part * 128);
  }
  if (code != cudaSuccess) std::snprintf(said, room, "%s", cudaGetErrorString(code));
  return code;
}
