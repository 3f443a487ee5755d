#include "client/core/threads/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace ckptd {
namespace {

namespace fs = std::filesystem;

class QuotaTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/cores-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& folder, const std::string& file, const std::string& text) const {
    fs::create_directories(root_ + folder);
    std::ofstream(root_ + folder + "/" + file) << text << "\n";
  }
  void First(const std::string& folder, const std::string& quota, const std::string& period) const {
    Write(folder, "cpu.cfs_quota_us", quota);
    Write(folder, "cpu.cfs_period_us", period);
  }

  std::string root_;
};

TEST_F(QuotaTest, OfVersionTwo) {
  Write("/pod", "cpu.max", "400000 100000");
  EXPECT_EQ(QuotaCores("0::/pod\n", root_), 4u);
  Write("/pod", "cpu.max", "max 100000");
  EXPECT_EQ(QuotaCores("0::/pod\n", root_), 0u);
}

TEST_F(QuotaTest, OfVersionOne) {
  First("/cpu/docker/1", "200000", "50000");
  const std::string groups = "12:cpuset:/docker/1\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n0::/docker/1\n";
  EXPECT_EQ(QuotaCores(groups, root_), 4u);
  First("/cpu/docker/1", "-1", "50000");
  EXPECT_EQ(QuotaCores(groups, root_), 0u);
}

TEST_F(QuotaTest, PartsOfACoreAreRoundedUp) {
  Write("", "cpu.max", "250000 100000");
  EXPECT_EQ(QuotaCores("0::/\n", root_), 3u);
  Write("", "cpu.max", "1000 100000");
  EXPECT_EQ(QuotaCores("0::/\n", root_), 1u);
}

TEST_F(QuotaTest, TheLeastOfAllAbove) {
  Write("", "cpu.max", "max 100000");
  Write("/kube", "cpu.max", "300000 100000");
  Write("/kube/pod", "cpu.max", "600000 100000");
  fs::create_directories(root_ + "/kube/pod/training");
  EXPECT_EQ(QuotaCores("0::/kube/pod/training\n", root_), 3u);
}

// The names are the machine's, what is mounted is the container's own group.
TEST_F(QuotaTest, OfAContainerThatSeesItsOwnGroupOnly) {
  Write("", "cpu.max", "800000 100000");
  EXPECT_EQ(QuotaCores("0::/kubepods.slice/pod7.slice/cri-1.scope\n", root_), 8u);
  First("/cpu", "200000", "100000");
  EXPECT_EQ(QuotaCores("3:cpu,cpuacct:/kubepods/pod7\n", root_), 2u);
}

TEST_F(QuotaTest, WhatMakesNoSenseIsNoLimit) {
  for (const std::string max : {"", "x y", "0 100000", "100000", "100000 0", "-5 10", "100000 -1"}) {
    Write("", "cpu.max", max);
    EXPECT_EQ(QuotaCores("0::/\n", root_), 0u) << max;
  }
  Write("", "cpu.max", "200000 100000");
  for (const std::string groups : {"", "\n", "0", "0::\n", ":\n", "0::/", "x:/\n", "7:cpuset:/\n"})
    EXPECT_EQ(QuotaCores(groups, root_), 0u) << groups;
}

// A group of this machine that grants one core, of whichever version is mounted; gone with its last process.
class RealGroup {
 public:
  RealGroup() {
    for (const char* const mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"}) {
      folder_ = std::string(mount) + "/ckptd-cores-" + std::to_string(getpid());
      std::error_code error;
      if (!fs::create_directory(folder_, error)) continue;
      made_ = Put("cpu.cfs_period_us", "100000") && Put("cpu.cfs_quota_us", "100000");
      made_ = made_ || Put("cpu.max", "100000 100000");
      if (made_) return;
      rmdir(folder_.c_str());
    }
  }
  ~RealGroup() { rmdir(folder_.c_str()); }
  RealGroup(const RealGroup&) = delete;
  RealGroup& operator=(const RealGroup&) = delete;

  [[nodiscard]] bool made() const { return made_; }
  [[nodiscard]] bool Join() const { return Put("cgroup.procs", "0"); }

 private:
  [[nodiscard]] bool Put(const std::string& file, const std::string& text) const {
    std::ofstream out(folder_ + "/" + file, std::ios::in);  // never a new file
    return static_cast<bool>(out << text << std::flush);
  }

  std::string folder_;
  bool made_ = false;
};

TEST(UsableCores, AreWhatTheProcesssGroupGrants) {
  const RealGroup group;
  if (!group.made()) GTEST_SKIP() << "skipped: no control group of CPU time may be made here";
  EXPECT_EXIT(_exit(group.Join() ? static_cast<int>(UsableCores()) : 99), testing::ExitedWithCode(1), "");
}

TEST(UsableCores, AreSomeOfTheMachines) {
  EXPECT_GE(UsableCores(), 1u);
  EXPECT_LE(UsableCores(), std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace ckptd
