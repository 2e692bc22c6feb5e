"""Model readers (URDF, MJCF, SDF), the bundled models and their descriptions."""

from trajopt.models.builder import ModelBuilder as ModelBuilder
from trajopt.models.builder import ModelWarning as ModelWarning
from trajopt.models.describe import describe as describe
from trajopt.models.describe import model_facts as model_facts
from trajopt.models.overlaps import overlapping_pairs as overlapping_pairs
from trajopt.models.registry import LoadReport as LoadReport
from trajopt.models.registry import bundled_file as bundled_file
from trajopt.models.registry import bundled_models as bundled_models
from trajopt.models.registry import load_model as load_model
from trajopt.models.registry import load_model_from_string as load_model_from_string
from trajopt.models.registry import load_model_with_report as load_model_with_report
from trajopt.models.terrain import on_terrain as on_terrain
