// The codes of this room once more, as a textbook has them: bit by bit and byte by byte, from the definitions in
// gf_matrix.h and code.h, without ISA-L. And images to try them on.
#ifndef CKPTD_DAEMON_ERASURE_NAIVE_TEST_UTIL_H_
#define CKPTD_DAEMON_ERASURE_NAIVE_TEST_UTIL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "daemon/erasure/code.h"

namespace ckptd::erasure::naive {

using Image = std::vector<std::byte>;

// Shift and add, reduced by 0x11d.
inline uint8_t Mul(uint8_t a, uint8_t b) {
  unsigned product = 0;
  for (unsigned bit = 0; bit < 8; ++bit) product ^= ((b >> bit) & 1U) != 0 ? unsigned{a} << bit : 0U;
  for (unsigned bit = 15; bit >= 8; --bit) product ^= ((product >> bit) & 1U) != 0 ? 0x11dU << (bit - 8) : 0U;
  return static_cast<uint8_t>(product);
}

inline uint8_t Inv(uint8_t a) {
  unsigned b = 1;
  while (Mul(a, static_cast<uint8_t>(b)) != 1) ++b;
  return static_cast<uint8_t>(b);
}

inline uint8_t Coefficient(const Shape& shape, uint32_t row, uint32_t column) {
  return shape.parity == 1 ? uint8_t{1} : Inv(static_cast<uint8_t>((shape.data + row) ^ column));
}

inline std::vector<Image> Parity(const Shape& shape, const std::vector<Image>& images) {
  size_t longest = 0;
  for (const Image& image : images) longest = std::max(longest, image.size());
  std::vector<Image> parity(shape.parity, Image(longest));
  for (uint32_t row = 0; row < shape.parity; ++row) {
    for (uint32_t column = 0; column < shape.data; ++column) {
      const uint8_t coefficient = Coefficient(shape, row, column);
      for (size_t i = 0; i < images[column].size(); ++i)
        parity[row][i] ^= std::byte{Mul(coefficient, std::to_integer<uint8_t>(images[column][i]))};
    }
  }
  return parity;
}

inline Image RandomImage(std::mt19937& random, size_t bytes) {
  Image image(bytes);
  for (std::byte& byte : image) byte = static_cast<std::byte>(random());
  return image;
}

// Where vectors, tails and nothing at all begin and end.
inline std::vector<Image> RandomImages(std::mt19937& random, uint32_t count) {
  static constexpr size_t kSizes[] = {0, 1, 15, 16, 31, 33, 63, 64, 65, 127, 200, 257, 1000};
  std::vector<Image> images;
  for (uint32_t i = 0; i < count; ++i) images.push_back(RandomImage(random, kSizes[random() % std::size(kSizes)]));
  return images;
}

inline std::vector<ConstBytes> Views(const std::vector<Image>& images) { return {images.begin(), images.end()}; }
inline std::vector<Bytes> Places(std::vector<Image>& images) { return {images.begin(), images.end()}; }

// Of what nothing may survive.
inline std::vector<Image> Filled(uint32_t count, size_t bytes) { return {count, Image(bytes, std::byte{0xa5})}; }

}  // namespace ckptd::erasure::naive

#endif  // CKPTD_DAEMON_ERASURE_NAIVE_TEST_UTIL_H_
