// A storage that others may write: who puts symbolic links where the agent reads, writes and deletes.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>

#include "tests/integration/hostile.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr char kEnemy[] = "--job enemy --every 1 --step-ms 10 --steps 100000000 --close-ms 0";
constexpr char kEnemysUser[] = "61234";
constexpr int kSwaps = 20;
constexpr Millis kBetween{30};

// Path below the folder: content.
std::map<std::string, std::string> FilesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string& content = files[fs::relative(entry.path(), folder)];
    if (!entry.is_regular_file()) continue;
    content = FileContent(entry.path());
  }
  return files;
}

// Puts a link to `others` in the place of the job's folder, again and again; at once, so that the agent makes no new
// one.
std::string SwapFolder(const std::string& job, const std::string& others) {
  const std::string spare = job + ".spare";
  if (symlink(others.c_str(), spare.c_str()) != 0) return "no link";
  int swapped = 0;
  for (int i = 0; i < 2 * kSwaps; ++i) {
    swapped += renameat2(AT_FDCWD, job.c_str(), AT_FDCWD, spare.c_str(), RENAME_EXCHANGE) == 0 ? 1 : 0;
    std::this_thread::sleep_for(kBetween);
  }
  return std::to_string(swapped / 2) + " swapped";
}

// Until it comes to rest: files that go while they are copied are an error.
bool CopyAtRest(const std::string& from, const std::string& to) {
  for (int tries = 0; tries < 100; ++tries) {
    std::error_code failed;
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive, failed);
    if (!failed) return true;
    std::this_thread::sleep_for(kBetween);
  }
  return false;
}

class LinksInTheStorage : public Hostile {};

TEST_F(LinksInTheStorage, LeadTheAgentNowhere) {
  const std::string job = node_->storage() + "/enemy", others = node_->storage() + "/others";
  ASSERT_EQ(chmod(node_->storage().c_str(), 0777), 0);
  EXPECT_EQ(Try("a folder of its own", [job] { return std::string(mkdir(job.c_str(), 0777) == 0 ? "made" : "no"); }),
            "made");
  auto enemy = node_->Train(Args(kEnemy), AsUser(kEnemysUser, kEnemysUser));
  ASSERT_TRUE(enemy->WaitFor("DURABLE")) << enemy->Errors() << node_->AgentLog();
  // With steps of the same names, which the agent is about to delete.
  enemy->Signal(SIGSTOP);
  ASSERT_TRUE(CopyAtRest(job, others));
  enemy->Signal(SIGCONT);
  const auto before = FilesIn(others);
  ASSERT_FALSE(before.empty());
  ExpectHears("swaps", std::to_string(kSwaps) + " swapped", [job, others] { return SwapFolder(job, others); });
  tried_ += kSwaps;
  EXPECT_TRUE(enemy->WaitFor("CAPTURED")) << "nor is the one who did it stopped in its training";
  enemy->Kill();
  const bool same = FilesIn(others) == before;
  EXPECT_TRUE(same) << "the agent wrote or deleted behind a link\n" << node_->AgentLog();
  wrong_ += same ? 0 : 1;
}

}  // namespace
}  // namespace ckptd::harness
