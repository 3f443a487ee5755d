#include "daemon/os/kernel_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ckptd {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

// A pipe hands over what was written in one piece as long as each record is read by itself, as the kernel does.
class KernelLogTest : public ::testing::Test {
 protected:
  KernelLogTest() : path_(std::filesystem::path(testing::TempDir()) / ("kmsg" + std::to_string(getpid()))) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    to_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  }
  ~KernelLogTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& record) {
    EXPECT_EQ(write(to_.get(), record.data(), record.size()), static_cast<ssize_t>(record.size()));
  }
  std::string Since(KernelLog& log, Nanos since) { return log.GpuErrorSince(since).value_or("none"); }

  std::string path_;
  UniqueFd to_;
};

constexpr char kXid[] =
    "3,1201,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n";
constexpr char kText[] = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";

TEST_F(KernelLogTest, TellsOfAnErrorThatIsYoungEnough) {
  Write(kXid);
  KernelLog log(path_);
  EXPECT_EQ(Since(log, microseconds(5'000'001)), "none") << "before";
  EXPECT_EQ(Since(log, seconds(5)), kText);
  EXPECT_EQ(Since(log, seconds(1)), kText) << "told again";
}

TEST_F(KernelLogTest, OtherLinesSayNothing) {
  for (const char* line : {"6,1,5000000,-;eth0: link up\n", "no record", "6,1;NVRM: Xid without a time\n",
                           "6,1,later,-;NVRM: Xid at no time\n", "6,1,5000000,-;NVRM: loading\n NVRM: Xid=no text\n"}) {
    Write(line);
    KernelLog log(path_);
    EXPECT_EQ(Since(log, Nanos(0)), "none") << line;
  }
}

// Its own microseconds may be far behind by then.
TEST_F(KernelLogTest, WhatComesLaterIsOfNow) {
  KernelLog log(path_);
  EXPECT_EQ(Since(log, Nanos(0)), "none");
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  Write(kXid);
  EXPECT_TRUE(log.Read(1));
  EXPECT_EQ(Since(log, seconds(now.tv_sec)), kText);
  EXPECT_EQ(Since(log, seconds(now.tv_sec + 3600)), "none");
}

TEST_F(KernelLogTest, ItsTextIsPrintable) {
  Write("3,1,5000000,-;NVRM: Xid \x1b[31m\xff" + std::string(1000, 'x') + "\n");
  KernelLog log(path_);
  EXPECT_EQ(Since(log, Nanos(0)).substr(0, 16), "NVRM: Xid ?[31m?");
  EXPECT_EQ(Since(log, Nanos(0)).size(), 256u);
}

TEST_F(KernelLogTest, EndsWithItsWriter) {
  KernelLog log(path_);
  EXPECT_TRUE(log.Read(1));
  to_.Reset();
  EXPECT_FALSE(log.Read(1));
}

TEST(KernelLog, IsTakenFromWhoHasItOpen) {
  const UniqueFd given(open(kKernelLog, O_RDONLY | O_CLOEXEC));
  if (!given.valid()) GTEST_SKIP() << kKernelLog << " cannot be opened here";
  KernelLog log("/no/such/kmsg", given.get());
  ASSERT_GE(log.fd(), 0);
  EXPECT_NE(log.fd(), given.get()) << "it closes its own only";
  EXPECT_EQ(log.GpuErrorSince(std::chrono::hours(24 * 365 * 100)), std::nullopt) << "reads to the end, and not on";
}

TEST_F(KernelLogTest, WhatElseIsOpenIsLeftAlone) {
  Write(kXid);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int given : {to_.get(), null.get(), -1}) {
    KernelLog log("/no/such/kmsg", given);
    EXPECT_EQ(log.fd(), -1) << given;
  }
}

TEST(KernelLog, UnreadableIsNoStatement) {
  KernelLog log("/no/such/kmsg");
  EXPECT_EQ(log.fd(), -1);
  EXPECT_FALSE(log.Read(1));
  EXPECT_EQ(log.GpuErrorSince(Nanos(0)), std::nullopt);
}

TEST(KernelLog, ClockTicksSinceBoot) {
  const auto per_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  EXPECT_EQ(SinceBoot(7 * per_second), seconds(7));
  EXPECT_EQ(SinceBoot(7 * per_second + per_second / 2), std::chrono::milliseconds(7500));
  const uint64_t years = 20ull * 365 * 86400 * per_second;
  EXPECT_EQ(SinceBoot(years), std::chrono::hours(20 * 365 * 24));
}

}  // namespace
}  // namespace ckptd
