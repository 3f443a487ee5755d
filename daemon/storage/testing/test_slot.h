// A slot for tests: images back to back in aligned memory, and the checksums of its chunks. Each image is whole: a
// header of one page, and one tensor of random-looking bytes.
#ifndef CKPTD_DAEMON_STORAGE_TESTING_TEST_SLOT_H_
#define CKPTD_DAEMON_STORAGE_TESTING_TEST_SLOT_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/core/copy/crc32c.h"
#include "daemon/os/files.h"
#include "proto/local/region.h"

namespace ckptd {

class TestSlot {
 public:
  // Sizes are multiples of 4096. The same seed gives the same bytes.
  TestSlot(const std::vector<uint64_t>& image_bytes, uint64_t chunk_bytes, uint32_t seed) : chunk_bytes_(chunk_bytes) {
    for (uint64_t bytes : image_bytes) {
      images_.push_back({size_, bytes, kImageAlignment});
      size_ += bytes;
    }
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, size_)));
    uint32_t state = seed * 2654435761u + 1;
    for (uint64_t i = 0; i < size_; ++i) {
      state = state * 1664525u + 1013904223u;
      memory_.get()[i] = static_cast<std::byte>(state >> 24);
    }
    for (size_t i = 0; i < images_.size(); ++i) {
      WriteHeader(image(i));
      header_crc_ = Crc32c(header_crc_, image(i).data(), kImageAlignment);
    }
  }

  [[nodiscard]] std::span<std::byte> bytes() { return {memory_.get(), size_}; }
  [[nodiscard]] std::span<std::byte> image(size_t i) { return bytes().subspan(images_[i].offset, images_[i].bytes); }
  [[nodiscard]] const std::vector<ImageExtent>& images() const { return images_; }
  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] uint32_t header_crc() const { return header_crc_; }  // as they were made, whatever was done to them
  [[nodiscard]] std::vector<uint32_t> ChunkCrcs() {
    std::vector<uint32_t> crcs;
    for (uint64_t at = 0; at < size_; at += chunk_bytes_) {
      crcs.push_back(Crc32c(0, memory_.get() + at, std::min(chunk_bytes_, size_ - at)));
    }
    return crcs;
  }

 private:
  static void WriteHeader(std::span<std::byte> image) {
    const uint64_t length = kImageAlignment - sizeof(uint64_t);
    const std::string data = std::to_string(image.size() - kImageAlignment);
    std::string text = R"({"data":{"dtype":"U8","shape":[)" + data + R"(],"data_offsets":[0,)" + data + "]}}";
    text.resize(length, ' ');
    std::memcpy(image.data(), &length, sizeof length);
    std::memcpy(image.data() + sizeof length, text.data(), text.size());
  }

  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<ImageExtent> images_;
  uint64_t chunk_bytes_;
  uint64_t size_ = 0;
  uint32_t header_crc_ = 0;
  std::unique_ptr<std::byte, FreeMemory> memory_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_TESTING_TEST_SLOT_H_
