#include "daemon/erasure/code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/erasure/naive_test_util.h"

namespace ckptd::erasure {
namespace {

using naive::Filled;
using naive::Image;
using naive::Places;
using naive::Views;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

size_t Longest(const std::vector<Image>& images) {
  size_t longest = 0;
  for (const Image& image : images) longest = std::max(longest, image.size());
  return longest;
}

std::vector<Image> Encoded(const Code& code, const std::vector<Image>& images) {
  std::vector<Image> parity = Filled(code.shape().parity, Longest(images));
  EXPECT_TRUE(code.Encode(Views(images), Places(parity)).ok());
  return parity;
}

TEST(Code, Shapes) {
  for (const Shape& good : {Shape{1, 1}, Shape{254, 1}, Shape{1, 254}, Shape{128, 127}})
    EXPECT_TRUE(Code::Make(good).ok());
  for (const Shape& bad : {Shape{0, 1}, Shape{1, 0}, Shape{0, 0}, Shape{255, 1}, Shape{128, 128}, Shape{UINT32_MAX, 2},
                           Shape{2, UINT32_MAX}}) {
    const absl::Status status = Code::Make(bad).status();
    EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT);
    EXPECT_THAT(std::string(status.message()), HasSubstr(ToString(bad)));
  }
}

TEST(Code, ParityIsWhatTheTextbookSays) {
  std::mt19937 random(1);
  for (uint32_t data = 1; data <= 6; ++data) {
    for (uint32_t parity = 1; parity <= 3; ++parity) {
      const Code code = Code::Make({data, parity}).value();
      for (int round = 0; round < 20; ++round) {
        const std::vector<Image> images = naive::RandomImages(random, data);
        ASSERT_EQ(Encoded(code, images), naive::Parity(code.shape(), images)) << ToString(code.shape());
      }
    }
  }
}

// More rows than ISA-L computes at once, and as many members as there may be.
TEST(Code, ParityOfWideCodes) {
  std::mt19937 random(2);
  for (const Shape& shape : {Shape{10, 4}, Shape{5, 7}, Shape{3, 13}, Shape{254, 1}, Shape{128, 127}, Shape{1, 254}}) {
    const std::vector<Image> images = naive::RandomImages(random, shape.data);
    ASSERT_EQ(Encoded(Code::Make(shape).value(), images), naive::Parity(shape, images)) << ToString(shape);
  }
}

// Beyond one block, and with every length behind it.
TEST(Code, ParityOfLongImages) {
  std::mt19937 random(3);
  const Code code = Code::Make({3, 2}).value();
  for (size_t bytes : {(128u << 10) - 1, 128u << 10, (128u << 10) + 1, (256u << 10) + 77}) {
    const std::vector<Image> images = {naive::RandomImage(random, bytes), naive::RandomImage(random, bytes / 2),
                                       naive::RandomImage(random, bytes - 5)};
    ASSERT_EQ(Encoded(code, images), naive::Parity(code.shape(), images)) << bytes;
  }
}

// algorithms.md, CHK-7a: 1.0, 2.0 and -1.0 as bits.
TEST(Code, XorOfThreeFloats) {
  const auto bits = [](uint32_t value) {
    Image image(sizeof(value));
    std::memcpy(image.data(), &value, sizeof(value));
    return image;
  };
  const Code code = Code::Make({3, 1}).value();
  EXPECT_EQ(Encoded(code, {bits(0x3f800000), bits(0x40000000), bits(0xbf800000)}),
            std::vector<Image>{bits(0xc0000000)});
}

// The sizes up to 200 at which an encoder differs from the textbook.
using Encode = std::function<void(const Code&, const std::vector<Image>&, std::vector<Image>&)>;
std::set<size_t> SizesThatDiffer(const Encode& encode) {
  std::mt19937 random(4);
  const Code code = Code::Make({3, 2}).value();
  std::set<size_t> sizes;
  for (size_t bytes = 0; bytes <= 200; ++bytes) {
    const std::vector<Image> images = {naive::RandomImage(random, bytes), naive::RandomImage(random, bytes / 3),
                                       naive::RandomImage(random, bytes)};
    std::vector<Image> parity = Filled(2, bytes);
    encode(code, images, parity);
    if (parity != naive::Parity(code.shape(), images)) sizes.insert(bytes);
  }
  return sizes;
}

TEST(Code, EverySizeHasItsTail) {
  EXPECT_THAT(SizesThatDiffer([](const Code& code, const std::vector<Image>& images, std::vector<Image>& parity) {
                EXPECT_TRUE(code.Encode(Views(images), Places(parity)).ok());
              }),
              IsEmpty());
}

// That the test above notices an encoder that leaves out what does not fill a vector.
TEST(Code, AnEncoderWithoutTailsIsNoticedAtEverySizeThatHasOne) {
  const auto whole_vectors = [](const Code& code, const std::vector<Image>& images, std::vector<Image>& parity) {
    const size_t bytes = parity[0].size() / 64 * 64;
    std::vector<ConstBytes> data = Views(images);
    for (ConstBytes& piece : data) piece = piece.first(std::min(piece.size(), bytes));
    std::vector<Bytes> places = Places(parity);
    for (Bytes& place : places) place = place.first(bytes);
    EXPECT_TRUE(code.Encode(data, places).ok());
  };
  const std::set<size_t> differ = SizesThatDiffer(whole_vectors);
  for (size_t bytes = 0; bytes <= 200; ++bytes) EXPECT_EQ(differ.contains(bytes), bytes % 64 != 0) << bytes;
}

// A page that ends where nobody may read or write.
class Page {
 public:
  Page() : bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* pages = mmap(nullptr, 2 * bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<std::byte*>(pages);
    EXPECT_EQ(mprotect(begin_ + bytes_, bytes_, PROT_NONE), 0);
  }
  ~Page() { munmap(begin_, 2 * bytes_); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  Bytes Last(size_t bytes) { return {begin_ + bytes_ - bytes, bytes}; }
  std::byte Before(size_t bytes) { return *(begin_ + bytes_ - bytes - 1); }

 private:
  size_t bytes_;
  std::byte* begin_;
};

// ISA-L's vectors are not seen by sanitizers: the kernel watches the far end, a byte the near one.
TEST(Code, NothingIsTouchedBesideThePieces) {
  const Code code = Code::Make({2, 2}).value();
  Page a, b, p, q;
  for (size_t bytes = 0; bytes <= 300; ++bytes) {
    *(p.Last(bytes + 1).data()) = std::byte{0x77};
    *(q.Last(bytes + 1).data()) = std::byte{0x77};
    const ConstBytes data[] = {a.Last(bytes), b.Last(bytes * 2 / 3)};
    const Bytes parity[] = {p.Last(bytes), q.Last(bytes)};
    ASSERT_TRUE(code.Encode(data, parity).ok());
    code.parity().AddColumn(1, data[1], parity);
    ASSERT_EQ(p.Before(bytes), std::byte{0x77}) << bytes;
    ASSERT_EQ(q.Before(bytes), std::byte{0x77}) << bytes;
  }
}

TEST(Code, PiecesThatDoNotFitAreNamed) {
  std::mt19937 random(5);
  const Code code = Code::Make({2, 2}).value();
  const std::vector<Image> images = {naive::RandomImage(random, 64), naive::RandomImage(random, 100)};
  std::vector<Image> shorter = Filled(2, 99), unequal = {Image(100), Image(101)}, one = Filled(1, 100);
  absl::Status status = code.Encode(Views(images), Places(shorter));
  EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("member 1 has 100 bytes, must have at most 99"));
  status = code.Encode(Views(images), Places(unequal));
  EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("member 3 has 101 bytes, must have 100"));
  EXPECT_EQ(CodeOf(code.Encode(Views(images), Places(one))), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(shorter, Filled(2, 99)) << "nothing is written before all is checked";
}

TEST(Code, ParityBeyondTheLongestImageIsZeros) {
  const Code code = Code::Make({2, 2}).value();
  const std::vector<Image> images = {Image(3), {}};
  std::vector<Image> parity = Filled(2, 100);
  ASSERT_TRUE(code.Encode(Views(images), Places(parity)).ok());
  EXPECT_EQ(parity, (std::vector<Image>(2, Image(100))));
}

TEST(Code, PieceOfAnImage) {
  EXPECT_EQ(PieceBytes(100, 0, 64), 64u);
  EXPECT_EQ(PieceBytes(100, 64, 64), 36u);
  EXPECT_EQ(PieceBytes(100, 100, 64), 0u);
  EXPECT_EQ(PieceBytes(100, UINT64_MAX, 64), 0u);
  EXPECT_EQ(PieceBytes(0, 0, 64), 0u);
}

TEST(Code, ACrcThatDiffersIsCorrupt) {
  Image piece(100, std::byte{7});
  const uint32_t crc = Crc32c(0, piece.data(), piece.size());
  EXPECT_TRUE(CheckCrc(piece, crc, "rank 3 chunk 2").ok());
  piece[99] ^= std::byte{1};
  const absl::Status status = CheckCrc(piece, crc, "rank 3 chunk 2");
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 chunk 2"));
  EXPECT_TRUE(CheckCrc({}, 0, "nothing").ok());
}

TEST(Code, ThreadsShareOne) {
  std::mt19937 random(6);
  const Code code = Code::Make({4, 2}).value();
  const std::vector<Image> images = {naive::RandomImage(random, 70'000), naive::RandomImage(random, 65),
                                     naive::RandomImage(random, 0), naive::RandomImage(random, 70'000)};
  const std::vector<Image> expected = naive::Parity(code.shape(), images);
  std::vector<Image> parity[2];
  std::thread other([&] { parity[1] = Encoded(code, images); });
  parity[0] = Encoded(code, images);
  other.join();
  EXPECT_EQ(parity[0], expected);
  EXPECT_EQ(parity[1], expected);
}

TEST(Code, ARowIsOneParityOfTheWhole) {
  for (const Shape shape : {Shape{3, 1}, Shape{4, 2}, Shape{5, 3}}) {
    auto code = Code::Make(shape);
    ASSERT_TRUE(code.ok());
    for (uint32_t row = 0; row < shape.parity; ++row) {
      auto one = Code::MakeRow(shape, row);
      ASSERT_TRUE(one.ok());
      EXPECT_EQ(one->shape(), (Shape{shape.data, 1}));
      for (uint32_t j = 0; j < shape.data; ++j)
        EXPECT_EQ(one->parity().matrix().at(0, j), code->parity().matrix().at(row, j));
    }
  }
  EXPECT_FALSE(Code::MakeRow({0, 1}, 0).ok());
}

}  // namespace
}  // namespace ckptd::erasure
