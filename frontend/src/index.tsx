// TensorBoard imports this module into the tab's frame and calls `render()`.
import { render as renderInto } from "preact";
import { isExported } from "./exported";
import { followLink, followReload, followTheme } from "./host";
import { loadCaptures, openLink, reload } from "./state";
import style from "./style.css";
import { App } from "./views/app";

export function render(): void {
  document.documentElement.lang = "en";
  document.title = "Perf Advisor";
  const sheet = document.createElement("style");
  sheet.textContent = style;
  document.head.append(sheet);
  followTheme((theme) => {
    document.documentElement.dataset.theme = theme;
  });
  followLink(openLink);
  if (!isExported) followReload(() => void reload());
  const root = document.createElement("div");
  document.body.append(root);
  renderInto(<App />, root);
  void loadCaptures();
}

// An exported page has nobody else to begin it.
if (isExported) render();
