// What a slot must hold after a save: for the unit tests.
#ifndef CKPTD_CLIENT_SRC_TEST_IMAGE_H_
#define CKPTD_CLIENT_SRC_TEST_IMAGE_H_

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "client/core/copy/crc32c.h"
#include "client/core/image/parser.h"
#include "client/src/fake_agent.h"
#include "client/src/test_trainer.h"

namespace ckptd {

// The slot's header, parsed.
inline void ReadImage(const std::string& slot, uint64_t* header_bytes, ImageInfo* image) {
  ASSERT_TRUE(HeaderBytes(slot.substr(0, 8), slot.size(), HeaderLimits(), header_bytes).ok());
  ImageError error = ParseHeader(slot.substr(0, *header_bytes), slot.size(), ImageEnd::kExact, HeaderLimits(), image);
  ASSERT_TRUE(error.ok()) << error.message;
}

// Where tensor i of a TestTrainer lies in the slot.
[[nodiscard]] inline uint64_t TensorOffset(const std::string& slot, size_t i) {
  uint64_t header_bytes = 0;
  ImageInfo image;
  ReadImage(slot, &header_bytes, &image);
  const TensorEntry* entry = image.Find("t" + std::to_string(i));
  return entry != nullptr ? header_bytes + entry->begin : UINT64_MAX;
}

// Compares the slot, as a safetensors image, tensor by tensor.
inline void ExpectImage(const std::string& slot, const TestTrainer& trainer, const std::string& extra) {
  uint64_t header_bytes = 0;
  ImageInfo image;
  ReadImage(slot, &header_bytes, &image);
  const std::string_view bytes(slot);  // the sanitizers watch each byte that is copied
  for (size_t i = 0; i < trainer.tensors.size(); ++i) {
    const TensorEntry* entry = image.Find("t" + std::to_string(i));
    ASSERT_NE(entry, nullptr);
    const std::string_view saved(trainer.tensors[i].data(), trainer.tensors[i].size());
    EXPECT_TRUE(bytes.substr(header_bytes + entry->begin, entry->end - entry->begin) == saved) << "tensor " << i;
  }
  const TensorEntry* last = image.Find("__ckptd_extra__.rank-00000");
  ASSERT_NE(last, nullptr);
  const std::string_view room = bytes.substr(header_bytes + last->begin, last->end - last->begin);
  EXPECT_EQ(room.substr(0, extra.size()), extra);
  EXPECT_EQ(room.find_first_not_of(' ', extra.size()), std::string::npos);
}

// Every chunk was told, with the CRC of its bytes.
inline void ExpectChunks(FakeAgent& agent, uint32_t slot, uint64_t epoch) {
  const std::string slot_bytes = agent.SlotBytes(slot);
  const std::string_view bytes(slot_bytes);
  for (uint32_t i = 0; i < agent.ready().chunk_count; ++i) {
    const std::string_view chunk = bytes.substr(i * agent.ready().chunk_bytes, agent.ready().chunk_bytes);
    uint64_t entry = agent.chunk_entry(slot, i);
    EXPECT_TRUE(ChunkDone(entry, epoch));
    EXPECT_EQ(static_cast<uint32_t>(entry), Crc32c(0, chunk.data(), chunk.size())) << "chunk " << i;
  }
}

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_TEST_IMAGE_H_
