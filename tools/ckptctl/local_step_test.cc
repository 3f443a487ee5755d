#include "tools/ckptctl/local_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "client/core/copy/crc32c.h"
#include "client/core/image/layout.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunk = 64 << 10;

// A committed step of one rank with one tensor, as ckptd leaves it on storage.
class LocalStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptctl-step-XXXXXX";
    dir_ = mkdtemp(name);
    std::vector<TensorSpec> tensors = {{"w", Dtype::kF32, {1000, 100}, {}}};
    Layout layout;
    ASSERT_TRUE(BuildLayout(tensors, {}, {}, &layout).ok());
    const LayoutImage& image = layout.images[0];
    bytes_ = image.header + std::string(image.bytes - image.header.size(), '\0');
    for (size_t i = image.header.size(); i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 7);
    image_ = ImageFileName(0, 1, 0);
    sidecar_ = SidecarFileName(0, 1);
    Write(image_, bytes_);
    WriteRecords(image.header.size());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void WriteRecords(uint64_t header_bytes) {
    v1::Sidecar sidecar;
    sidecar.set_job("gpt");
    sidecar.set_world_size(1);
    sidecar.set_attempt(1);
    sidecar.set_step(10);
    v1::SidecarImage* image = sidecar.add_images();
    image->set_name(image_);
    image->set_bytes(bytes_.size());
    image->set_header_bytes(header_bytes);
    sidecar.set_chunk_bytes(kChunk);
    sidecar.set_slot_bytes(bytes_.size());
    for (size_t at = 0; at < bytes_.size(); at += kChunk) {
      sidecar.add_chunk_crc32c(Crc32c(0, bytes_.data() + at, std::min<size_t>(kChunk, bytes_.size() - at)));
    }
    sidecar.set_captured_unix_ns(1);
    sidecar.set_flushed_unix_ns(2);
    std::string text = SidecarText(sidecar);
    Write(sidecar_, text);
    auto manifest = MakeManifest({text});
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    Write(kManifestName, ManifestText(*manifest));
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name, std::ios::binary | std::ios::trunc) << text;
  }
  void Flip(const std::string& name, size_t at) {
    std::string text = ReadSmall(PosixFiles(), dir_ + "/" + name, 64 << 20).value();
    text[at] = static_cast<char>(text[at] ^ 1);
    Write(name, text);
  }
  absl::StatusOr<v1::VerifyProgress> Verify(const std::string& below = "") {
    return VerifyPath(PosixFiles(), dir_ + below, [](uint64_t, uint64_t) {});
  }

  std::string dir_;
  std::string bytes_;
  std::string image_;
  std::string sidecar_;
};

TEST_F(LocalStepTest, AGoodStepIsReadWhole) {
  auto check = Verify("/");
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->damage_size(), 0);
  EXPECT_EQ(check->step(), 10);
  EXPECT_EQ(check->bytes_done(), bytes_.size());
  EXPECT_TRUE(check->done());
  EXPECT_EQ(check->note(), "");
}

TEST_F(LocalStepTest, EveryBadChunkIsNamed) {
  Flip(image_, kChunk + 5);
  Flip(image_, 3 * kChunk + 5);
  for (const std::string& path : {std::string(), "/" + image_}) {
    auto check = Verify(path);
    ASSERT_TRUE(check.ok()) << check.status();
    ASSERT_EQ(check->damage_size(), 2) << path;
    std::set<uint64_t> offsets = {check->damage(0).offset(), check->damage(1).offset()};
    EXPECT_EQ(offsets, (std::set<uint64_t>{kChunk, 3 * kChunk}));
    EXPECT_EQ(check->damage(0).file(), image_);
  }
}

TEST_F(LocalStepTest, WhatIsMissingIsDamage) {
  std::filesystem::remove(dir_ + "/" + image_);
  auto check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  ASSERT_EQ(check->damage_size(), 1);
  EXPECT_EQ(check->damage(0).file(), image_);
}

TEST_F(LocalStepTest, ASidecarThatWasNotCommittedIsDamage) {
  std::string manifest = ReadSmall(PosixFiles(), dir_ + "/manifest.json", 1 << 20).value();
  bytes_[bytes_.size() - 1] ^= 1;
  Write(image_, bytes_);
  WriteRecords(8192);  // image and sidecar agree with each other
  Write(kManifestName, manifest);
  auto check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  ASSERT_EQ(check->damage_size(), 1);
  EXPECT_EQ(check->damage(0).file(), sidecar_);
}

TEST_F(LocalStepTest, ADamagedManifestIsNoStep) {
  Flip(kManifestName, 20);
  EXPECT_EQ(CodeOf(Verify().status()), ErrorCode::CORRUPT);
}

TEST_F(LocalStepTest, AFileAloneIsCheckedAsFarAsItGoes) {
  std::filesystem::remove(dir_ + "/" + sidecar_);
  std::filesystem::remove(dir_ + "/manifest.json");
  auto check = Verify("/" + image_);
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->damage_size(), 0);
  EXPECT_THAT(check->note(), HasSubstr("only its header"));
  Flip(image_, 9);
  EXPECT_EQ(Verify("/" + image_)->damage_size(), 1);
}

// As a run that died while it wrote leaves it.
TEST_F(LocalStepTest, AStepWithoutAManifestWasNeverCommitted) {
  std::filesystem::remove(dir_ + "/" + kManifestName);
  auto check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_TRUE(check->uncommitted());
  ASSERT_EQ(check->damage_size(), 1);
  EXPECT_EQ(check->damage(0).file(), kManifestName);
  EXPECT_EQ(check->damage(0).reason(), "missing: the step was never committed, and no restore takes it");
  EXPECT_EQ(check->bytes_done(), bytes_.size()) << "its chunks are checked all the same";
  Flip(image_, kChunk + 5);
  check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  ASSERT_EQ(check->damage_size(), 2);
  EXPECT_EQ(check->damage(1).offset(), kChunk);
}

TEST_F(LocalStepTest, AStepWithoutAManifestNamesTheRanksWithoutFiles) {
  const std::string step = "step-0000000010.a0001/";
  std::filesystem::create_directory(dir_ + "/" + step);
  for (Rank rank : {0, 2}) Write(step + ImageFileName(rank, 4, 0), bytes_);
  Write(step + ImageFileName(2, 4, 1), bytes_);
  EXPECT_THAT(Verify("/" + step)->damage(0).reason(), HasSubstr("; no file is here of ranks 1, 3"));
  for (const auto& image : {ImageFileName(0, 4, 0), ImageFileName(2, 4, 0), ImageFileName(2, 4, 1)})
    std::filesystem::remove(std::filesystem::path(dir_) / step / image);
  Write(step + ImageFileName(0, 40, 0), bytes_);
  EXPECT_THAT(Verify("/" + step)->damage(0).reason(), HasSubstr(" 15, 16 and 23 more"));
}

// As `ckptctl restore --rank` writes it.
TEST_F(LocalStepTest, WhatWasRestoredToPlainFilesIsNoStep) {
  std::filesystem::remove(dir_ + "/" + kManifestName);
  std::filesystem::remove(dir_ + "/" + sidecar_);
  auto check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_FALSE(check->uncommitted());
  EXPECT_EQ(check->damage_size(), 0);
}

TEST_F(LocalStepTest, FilesOfNoRankAreNobodysStep) {
  for (const std::string& name : {std::string(kManifestName), sidecar_, image_})
    std::filesystem::remove(dir_ + "/" + name);
  Write("model.safetensors", bytes_);
  auto check = Verify();
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->damage_size(), 0);
  EXPECT_THAT(check->note(), HasSubstr("only its header"));
}

TEST_F(LocalStepTest, PathsMayBeRelative) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_);
  const std::string name = std::filesystem::path(dir_).filename();
  for (const std::string& path : {std::string("."), "../" + name, "../" + name + "/", "./" + image_, image_}) {
    auto check = VerifyPath(PosixFiles(), path, [](uint64_t, uint64_t) {});
    ASSERT_TRUE(check.ok()) << path << ": " << check.status();
    EXPECT_EQ(check->damage_size(), 0) << path;
    EXPECT_EQ(check->bytes_done(), bytes_.size()) << path;
    EXPECT_TRUE(InspectPath(PosixFiles(), path, std::nullopt).ok()) << path;
  }
  std::filesystem::current_path(before);
}

TEST_F(LocalStepTest, InspectShowsTheTensors) {
  for (const std::string& path : {dir_, dir_ + "/" + image_}) {
    auto tensors = InspectPath(PosixFiles(), path, std::nullopt);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    ASSERT_EQ(tensors->tensors_size(), 2);  // and the extra one
    EXPECT_EQ(tensors->tensors(0).name(), "w");
    EXPECT_EQ(tensors->tensors(0).bytes(), 400000);
  }
  EXPECT_EQ(CodeOf(InspectPath(PosixFiles(), dir_, Rank{1}).status()), ErrorCode::NOT_FOUND);
  Flip(image_, 9);
  EXPECT_EQ(CodeOf(InspectPath(PosixFiles(), dir_, std::nullopt).status()), ErrorCode::CORRUPT);
}

}  // namespace
}  // namespace ckptd
