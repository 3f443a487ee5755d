#include "tools/ckptctl/output_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr char kFirst[] = "rank-00000-of-00002.safetensors";
constexpr char kSecond[] = "rank-00001-of-00002.safetensors";

class OutputFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptctl-out-XXXXXX";
    dir_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<OutputFiles> Open(const std::string& below = "/made/too") {
    auto out = OutputFiles::Open(PosixFiles(), dir_ + below);
    EXPECT_TRUE(out.ok()) << out.status();
    return *std::move(out);
  }
  static std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
  static uint32_t Crc(const std::string& text) { return Crc32c(0, text.data(), text.size()); }
  std::vector<std::string> Names(const std::string& below = "/made/too") {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + below))
      names.push_back(entry.path().filename());
    return names;
  }

  std::string dir_;
};

TEST_F(OutputFilesTest, AllAppearAtTheCommitAndNoneBefore) {
  auto out = Open();
  ASSERT_TRUE(out->Begin(kFirst, 6).ok());
  ASSERT_TRUE(out->Append(0, Bytes("abc")).ok());
  ASSERT_TRUE(out->Append(3, Bytes("def")).ok());
  ASSERT_TRUE(out->End(Crc("abcdef")).ok());
  EXPECT_FALSE(Exists(PosixFiles(), dir_ + "/made/too/" + kFirst).value());
  ASSERT_TRUE(out->Begin(kSecond, 1).ok());
  ASSERT_TRUE(out->Append(0, Bytes("x")).ok());
  ASSERT_TRUE(out->End(Crc("x")).ok());
  ASSERT_TRUE(out->Commit().ok());
  out.reset();
  EXPECT_THAT(Names(), UnorderedElementsAre(kFirst, kSecond));
  EXPECT_EQ(ReadSmall(PosixFiles(), dir_ + "/made/too/" + kFirst, 100).value(), "abcdef");
}

TEST_F(OutputFilesTest, WithoutCommitNothingStays) {
  auto out = Open();
  ASSERT_TRUE(out->Begin(kFirst, 1).ok());
  ASSERT_TRUE(out->Append(0, Bytes("x")).ok());
  ASSERT_TRUE(out->End(Crc("x")).ok());
  ASSERT_TRUE(out->Begin(kSecond, 5).ok());
  EXPECT_EQ(CodeOf(out->Commit()), ErrorCode::PROTOCOL);
  out.reset();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(OutputFilesTest, WrongBytesAndMissingBytesAreCorrupt) {
  auto out = Open();
  ASSERT_TRUE(out->Begin(kFirst, 3).ok());
  ASSERT_TRUE(out->Append(0, Bytes("ab")).ok());
  EXPECT_EQ(CodeOf(out->End(Crc("ab"))), ErrorCode::CORRUPT);
  ASSERT_TRUE(out->Append(2, Bytes("d")).ok());
  EXPECT_EQ(CodeOf(out->End(Crc("abc"))), ErrorCode::CORRUPT);
  ASSERT_TRUE(out->End(Crc("abd")).ok());
}

TEST_F(OutputFilesTest, HolesAndTooManyBytesAreRefused) {
  auto out = Open();
  EXPECT_EQ(CodeOf(out->Append(0, Bytes("a"))), ErrorCode::PROTOCOL);
  ASSERT_TRUE(out->Begin(kFirst, 3).ok());
  EXPECT_EQ(CodeOf(out->Append(1, Bytes("b"))), ErrorCode::PROTOCOL);
  EXPECT_EQ(CodeOf(out->Append(0, Bytes("abcd"))), ErrorCode::PROTOCOL);
}

TEST_F(OutputFilesTest, OnlyNamesOfOursAndNeverOverAnother) {
  auto out = Open();
  for (const char* name : {"", "..", "../x.safetensors", "/etc/passwd", "manifest.json", "rank-00000-of-00002.json",
                           "x/rank-00000-of-00002.safetensors"}) {
    EXPECT_EQ(CodeOf(out->Begin(name, 1)), ErrorCode::INVALID_ARGUMENT) << name;
  }
  ASSERT_TRUE(out->Begin(kFirst, 1).ok());
  ASSERT_TRUE(out->Append(0, Bytes("x")).ok());
  ASSERT_TRUE(out->End(Crc("x")).ok());
  auto other = Open();
  ASSERT_TRUE(other->Begin(kFirst, 1).ok());
  ASSERT_TRUE(other->Append(0, Bytes("y")).ok());
  ASSERT_TRUE(other->End(Crc("y")).ok());
  ASSERT_TRUE(out->Commit().ok());
  EXPECT_EQ(CodeOf(other->Commit()), ErrorCode::REFUSED);
  other.reset();
  EXPECT_EQ(ReadSmall(PosixFiles(), dir_ + "/made/too/" + kFirst, 100).value(), "x");
  EXPECT_EQ(CodeOf(Open()->Begin(kFirst, 1)), ErrorCode::REFUSED);
  EXPECT_THAT(Names(), UnorderedElementsAre(kFirst));
}

}  // namespace
}  // namespace ckptd
