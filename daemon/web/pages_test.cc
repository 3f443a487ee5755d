#include "daemon/web/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"
#include "daemon/metrics/text.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class PagesTest : public ::testing::Test {
 protected:
  HttpResponse Get(absl::string_view path) {
    PageSources sources;
    sources.metrics = &metrics_;
    sources.refresh_metrics = [this] { metrics_.clients.With({}).Set(7); };
    sources.status = [] {
      auto view = std::make_shared<v1::StatusView>();
      view->mutable_agent()->set_node("node-7");
      return view;
    };
    sources.health = [this] { return health_; };
    return MakePages(sources)(path);
  }

  AgentMetrics metrics_{"0.1.0", ""};
  absl::Status health_;
};

TEST_F(PagesTest, MetricsAreFreshAtEveryScrape) {
  HttpResponse response = Get("/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, kMetricsContentType);
  EXPECT_THAT(response.body, HasSubstr("\nckptd_clients 7\n"));
  EXPECT_GT(metrics_.process_resident.With({}).value(), 0);
}

TEST_F(PagesTest, HealthSaysWhy) {
  EXPECT_EQ(Get("/healthz").status, 200);
  health_ = Error(ErrorCode::STORAGE_HUNG, "storage /data: no answer for 90 s");
  HttpResponse response = Get("/healthz");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.body, "storage /data: no answer for 90 s\n");
}

TEST_F(PagesTest, StatusIsJson) {
  HttpResponse response = Get("/status.json");
  EXPECT_EQ(response.content_type, "application/json");
  EXPECT_THAT(response.body, HasSubstr("\"node\": \"node-7\""));
}

TEST_F(PagesTest, TheRootNamesThePages) {
  EXPECT_THAT(Get("/").body, HasSubstr("/status.json\n"));
  EXPECT_EQ(Get("/").status, 200);
  EXPECT_EQ(Get("/metrics/").status, 404);
}

}  // namespace
}  // namespace ckptd
