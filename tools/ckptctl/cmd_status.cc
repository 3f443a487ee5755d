// ckptctl status [JOB] [-w]
#include <chrono>
#include <thread>

#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

absl::StatusOr<v1::StatusView> Ask(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  v1::StatusRequest request;
  request.set_job(args.word(0));
  return client->Status(request);
}

// An agent that restarts is shown as what it is, and asked again. Ends by a signal.
[[noreturn]] void Watch(const Args& args, bool json) {
  for (;;) {
    auto view = Ask(args);
    std::string text = view.ok() ? FormatStatus(*view) : ErrorText(view.status());
    if (json && view.ok()) {
      PrintJson(*view);
    } else {
      Print(UseColour() ? kClearScreen + text : text + "\n");
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

absl::StatusOr<int> RunStatus(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  if (args.Has("-w")) Watch(args, json);
  CKPTD_ASSIGN_OR_RETURN(v1::StatusView view, Ask(args));
  if (json) {
    PrintJson(view);
  } else {
    Print(FormatStatus(view));
  }
  return IsHealthy(view) ? kYes : kNo;
}

}  // namespace ckptd
