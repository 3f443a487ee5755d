// A member as a process of its own, for tests that kill and stop it: etcd_member ENDPOINTS PREFIX NAME TTL_SECONDS.
// Prints a line for each change, and every second: "standing CODE GENERATION" and "members NAME/GENERATION ...".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/etcd_client.h"
#include "daemon/membership/etcd_source.h"
#include "daemon/membership/membership.h"
#include "daemon/os/loop.h"
#include "daemon/os/posix_files.h"

namespace ckptd::membership {
namespace {

void Print(const Membership& membership) {
  const Standing self = membership.self();
  std::string line = absl::StrCat("standing ", InfoOf(CodeOf(self.status)).name, " ", self.generation, " members");
  for (const Member& member : membership.view()->members)
    absl::StrAppend(&line, " ", member.name, "/", member.generation);
  (void)std::printf("%s\n", line.c_str());
  (void)std::fflush(stdout);
}

void PrintEverySecond(Loop& loop, const Membership& membership) {
  Print(membership);
  loop.After(std::chrono::seconds(1), [&loop, &membership] { PrintEverySecond(loop, membership); });
}

int Run(char** argv) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(argv[4], &seconds)) return 2;
  const Nanos ttl = std::chrono::seconds(seconds);
  auto etcd = ConnectEtcd(PosixFiles(), {argv[1], "", "", "", ttl / 3});
  auto loop = Loop::Create(SystemClock(), 16);
  if (!etcd.ok() || !loop.ok()) return 2;
  const EtcdSettings settings{{argv[3], "", 9465, {}, 0}, argv[2], ttl};
  Membership membership(SystemClock(), std::make_unique<EtcdSource>(**loop, *std::move(etcd), settings));
  membership.Watch([&membership](const std::shared_ptr<const View>&) { Print(membership); });
  if (!membership.Start().ok()) return 2;
  PrintEverySecond(**loop, membership);
  return (*loop)->Run().ok() ? 0 : 1;
}

}  // namespace
}  // namespace ckptd::membership

int main(int argc, char** argv) { return argc == 5 ? ckptd::membership::Run(argv) : 2; }
