// Reads a file of safetensors: eight bytes of length, a JSON header, the data. Little-endian machines.
//
//   safetensors::File file("ssd.step.safetensors");
//   std::vector<float> x = file.values<float>("0/in/token.x");       // from F32 or F64, converted
//   const std::vector<std::size_t>& shape = file.at("0/in/token.x").shape;
//
// Raises std::runtime_error, with the name of the file or tensor, for whatever does not fit.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace safetensors {

struct Tensor {
  std::string dtype;
  std::vector<std::size_t> shape;
  std::size_t begin = 0, end = 0;

  std::size_t size() const {
    std::size_t product = 1;
    for (std::size_t extent : shape) product *= extent;
    return product;
  }
};

class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw std::runtime_error(path + " cannot be opened");
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    std::uint64_t length = 0;
    if (bytes_.size() < 8) throw std::runtime_error(path + " is shorter than its length field");
    std::memcpy(&length, bytes_.data(), 8);
    if (length > bytes_.size() - 8) throw std::runtime_error(path + " is shorter than its header says");
    header_ = std::string(bytes_.data() + 8, length);
    data_ = 8 + length;
    parse();
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  const Tensor& at(const std::string& name) const {
    auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error(path_ + " holds no tensor " + name);
    return found->second;
  }

  template <typename T>
  std::vector<T> values(const std::string& name) const {
    const Tensor& tensor = at(name);
    if (tensor.dtype == "F32") return convert<T, float>(name, tensor);
    if (tensor.dtype == "F64") return convert<T, double>(name, tensor);
    if (tensor.dtype == "I64") return convert<T, std::int64_t>(name, tensor);
    if (tensor.dtype == "BOOL" || tensor.dtype == "U8") return convert<T, std::uint8_t>(name, tensor);
    throw std::runtime_error(name + " is of " + tensor.dtype + "; F32, F64, I64, BOOL and U8 are read");
  }

 private:
  template <typename T, typename Stored>
  std::vector<T> convert(const std::string& name, const Tensor& tensor) const {
    if (tensor.end - tensor.begin != tensor.size() * sizeof(Stored)) throw std::runtime_error(name + " has another length");
    if (tensor.end > bytes_.size() - data_) throw std::runtime_error(name + " lies beyond the end of " + path_);
    std::vector<T> out(tensor.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      Stored value;
      std::memcpy(&value, bytes_.data() + data_ + tensor.begin + i * sizeof(Stored), sizeof(Stored));
      out[i] = static_cast<T>(value);
    }
    return out;
  }

  void parse() {
    expect('{');
    while (peek() != '}') {
      std::string name = text();
      expect(':');
      Tensor tensor;
      expect('{');
      while (peek() != '}') {
        std::string key = text();
        expect(':');
        if (key == "shape") tensor.shape = numbers();
        else if (key == "data_offsets") {
          std::vector<std::size_t> range = numbers();
          if (range.size() != 2 || range[0] > range[1]) fail();
          tensor.begin = range[0], tensor.end = range[1];
        } else tensor.dtype = text();
        if (peek() == ',') ++at_;
      }
      expect('}');
      if (name != "__metadata__") tensors_[name] = tensor;
      if (peek() == ',') ++at_;
    }
  }

  char peek() {
    while (at_ < header_.size() && std::isspace(static_cast<unsigned char>(header_[at_]))) ++at_;
    if (at_ >= header_.size()) fail();
    return header_[at_];
  }

  void expect(char wanted) {
    if (peek() != wanted) fail();
    ++at_;
  }

  std::string text() {
    expect('"');
    std::string out;
    while (at_ < header_.size() && header_[at_] != '"') {
      if (header_[at_] == '\\') ++at_;
      if (at_ < header_.size()) out += header_[at_++];
    }
    expect('"');
    return out;
  }

  std::vector<std::size_t> numbers() {
    std::vector<std::size_t> out;
    expect('[');
    while (peek() != ']') {
      std::size_t value = 0;
      if (!std::isdigit(static_cast<unsigned char>(peek()))) fail();
      while (std::isdigit(static_cast<unsigned char>(header_[at_]))) value = 10 * value + (header_[at_++] - '0');
      out.push_back(value);
      if (peek() == ',') ++at_;
    }
    expect(']');
    return out;
  }

  [[noreturn]] void fail() const { throw std::runtime_error(path_ + " has a header that is not understood"); }

  std::string path_, header_;
  std::vector<char> bytes_;
  std::size_t data_ = 0, at_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace safetensors
