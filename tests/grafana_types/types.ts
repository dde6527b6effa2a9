// What a dashboard of ours may hold: Grafana's own types, made stricter where they leave things open (options and custom settings of
// a panel, queries of Prometheus, annotations), and with enums written as the words that JSON has for them.

import type { AnnotationQuery, Dashboard, DataSourceRef, FieldConfig, Panel, RowPanel } from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends Array<infer Item>
      ? Array<Plain<Item>>
      : T extends object
        ? { [Key in keyof T]: Plain<T[Key]> }
        : T;

// As Grafana's Prometheus data source reads it; its types are in no package.
interface Query {
  datasource: DataSourceRef;
  editorMode: 'code';
  expr: string;
  format: 'time_series' | 'table' | 'heatmap';
  instant: boolean;
  legendFormat: string;
  range: boolean;
  refId: string;
}

interface Annotation extends Omit<AnnotationQuery, 'target'> {
  expr: string;
  step: string;
  tagKeys: string;
  target: { expr: string; interval: string; refId: string };
  textFormat: string;
  titleFormat: string;
  useValueForTime: boolean;
}

interface Drawn<Type extends string, Options, Custom> extends Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> {
  type: Type;
  options: Options;
  targets: Query[];
  fieldConfig: {
    defaults: Omit<FieldConfig, 'custom'> & { custom: Partial<Custom> };
    overrides: Array<{
      matcher: { id: 'byRegexp' | 'byFrameRefID'; options: string };
      properties: Array<{ id: 'color'; value: { mode: 'fixed'; fixedColor: string } }>;
    }>;
  };
}

type AnyPanel =
  | (Omit<RowPanel, 'panels'> & { panels: never[] })
  | Drawn<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Drawn<'stat', stat.Options, Record<string, never>>
  | Drawn<'bargauge', bargauge.Options, Record<string, never>>
  | Drawn<'state-timeline', timeline.Options, timeline.FieldConfig>
  | Drawn<'table', table.Options, table.FieldConfig>;

export type OurDashboard = Plain<
  Omit<Dashboard, 'panels' | 'annotations'> & { panels: AnyPanel[]; annotations: { list: Annotation[] } }
>;
