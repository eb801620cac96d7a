// Judges a decode kernel in C++ by the golden vectors of ssd.step: one token of Mamba-2 in float.
//
//   g++ -std=c++17 -O2 -o judge_step judge_step.cpp && ./judge_step ../ssd.step.safetensors
//
// Ends with 0 if every element of every vector lies within the bound of the contract "fp32".
#include <cmath>
#include <cstdio>

#include "safetensors.hpp"

using Floats = std::vector<float>;

struct Token {  // what the kernel reads; an empty vector is an option that is off
  std::size_t b, h, p, n, g;
  Floats S, x, dt, B, C, z, A, D, dt_bias, dt_limit;
  bool softplus;
};

// The kernel under judgement:  a = exp(dt A)   S' = a S + dt x B^T   y = S' C + D x, gated by silu(z)
Floats step(const Token& in, Floats& S) {
  Floats y(in.b * in.h * in.p);
  for (std::size_t b = 0; b < in.b; ++b)
    for (std::size_t h = 0; h < in.h; ++h) {
#ifdef PLANTED_FAULT  // head h reads group h mod g
      std::size_t group = h % in.g;
#else
      std::size_t group = h / (in.h / in.g);
#endif
      float dt = in.dt[b * in.h + h] + (in.dt_bias.empty() ? 0.0f : in.dt_bias[h]);
      if (in.softplus) dt = dt > 20.0f ? dt : std::log1p(std::exp(dt));
      dt = std::fmin(std::fmax(dt, in.dt_limit[0]), in.dt_limit[1]);
      float decay = std::exp(dt * in.A[h]);
      for (std::size_t p = 0; p < in.p; ++p) {
        std::size_t at = (b * in.h + h) * in.p + p;
        float sum = 0.0f;
        for (std::size_t n = 0; n < in.n; ++n) {
          float& s = S[at * in.n + n];
          s = decay * s + dt * in.x[at] * in.B[(b * in.g + group) * in.n + n];
          sum += s * in.C[(b * in.g + group) * in.n + n];
        }
        if (!in.D.empty()) sum += in.D[in.D.size() == in.h ? h : h * in.p + p] * in.x[at];
        if (!in.z.empty()) sum *= in.z[at] / (1.0f + std::exp(-in.z[at]));
        y[at] = sum;
      }
    }
  return y;
}

Token read(const safetensors::File& file, const std::string& number) {
  auto get = [&](const std::string& name) {
    return file.has(number + "/in/" + name) ? file.values<float>(number + "/in/" + name) : Floats{};
  };
  const auto& S = file.at(number + "/in/S").shape;
  const auto& B = file.at(number + "/in/token.B").shape;
  return {S[0], S[1], S[2], S[3], B[1], get("S"), get("token.x"), get("token.dt"), get("token.B"), get("token.C"),
          get("token.z"), get("params.A"), get("params.D"), get("params.dt_bias"), get("params.dt_limit"),
          file.values<int>(number + "/in/params.dt_softplus")[0] != 0};
}

// The largest |came - out| / bound; what is no number counts as infinite.
double used(const safetensors::File& file, const std::string& number, const std::string& name, const Floats& came) {
  auto out = file.values<double>(number + "/out/" + name), bound = file.values<double>(number + "/bound/fp32/" + name);
  double most = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    double error = std::fabs(came[i] - out[i]), ratio = error == 0.0 ? 0.0 : error / bound[i];
    most = std::isnan(ratio) ? INFINITY : std::fmax(most, ratio);
  }
  return most;
}

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s ssd.step.safetensors\n", words[0]), 2;
  try {
    safetensors::File file(words[1]);
    int judged = 0, failed = 0;
    for (; file.has(std::to_string(judged) + "/in/S"); ++judged) {
      std::string number = std::to_string(judged);
      Token token = read(file, number);
      Floats S = token.S, y = step(token, S);
      double of_y = used(file, number, "y", y), of_S = used(file, number, "S", S);
      bool good = of_y <= 1.0 && of_S <= 1.0;
      failed += !good;
      std::printf("%s  vector %d  y %.3g  S %.3g of the bound\n", good ? "pass" : "FAIL", judged, of_y, of_S);
    }
    std::printf("%d vectors, %d failed\n", judged, failed);
    return judged == 0 || failed != 0;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 2;
  }
}
